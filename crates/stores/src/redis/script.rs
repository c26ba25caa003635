//! The scripts, and how they are called.

use std::sync::LazyLock;

use redis::{Arg, Cmd, cmd};

/// A script, known to a server by its hash.
pub(super) struct Script {
    /// How many of the given keys it uses.
    keys: usize,
    source: &'static str,
    hash: LazyLock<String, fn() -> String>,
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident($keys:literal) = [$($part:literal),+];)+) => {
        $(
            $(#[$doc])*
            pub(super) static $name: Script = {
                const SOURCE: &str = concat!($(include_str!(concat!("lua/", $part, ".lua"))),+);
                Script {
                    keys: $keys,
                    source: SOURCE,
                    hash: LazyLock::new(|| redis::Script::new(SOURCE).get_hash().to_owned()),
                }
            };
        )+
        /// Every script.
        const ALL: &[&Script] = &[$(&$name),+];
    };
}

scripts! {
    /// On one operation; each begins by finding it.
    CLAIM(2) = ["clock", "record_and_floor", "find", "claim"];
    SETTLE(2) = ["clock", "record", "find", "held", "settle"];
    RENEW(2) = ["clock", "record", "find", "held", "renew"];
    READ(1) = ["clock", "record", "find", "read"];
    REQUEST(1) = ["clock", "record", "find", "request"];
    AWAIT(1) = ["clock", "record", "find", "await"];
    ENQUEUE(3) = ["clock", "record_and_floor", "find", "enqueue"];
    WRITE(3) = ["clock", "record_and_floor", "find", "write"];
    FORGET(3) = ["clock", "record_and_floor", "find", "forget"];
    /// On one shard.
    SWEEP(2) = ["clock", "sweep"];
    STATS(3) = ["clock", "stats"];
    DUE(3) = ["clock", "due"];
    POLICY(1) = ["policy"];
    /// On the documents of a collection.
    PUT(2) = ["put"];
    REMOVE(2) = ["remove"];
    DOCUMENTS(2) = ["documents"];
    /// The small write that replicas confirm.
    CONFIRM(2) = ["confirm"];
}

impl Script {
    /// A call of this script by its hash, on the first of these keys; the caller
    /// adds the arguments.
    pub(super) fn on(&self, keys: &[String]) -> Cmd {
        let keys = &keys[..self.keys];
        let mut call = cmd("EVALSHA");
        call.arg(self.hash.as_str()).arg(keys.len()).arg(keys);
        call
    }

    /// The same with the source in place of the hash.
    pub(super) fn with_source_on(&self, keys: &[String]) -> Cmd {
        let keys = &keys[..self.keys];
        let mut call = cmd("EVAL");
        call.arg(self.source).arg(keys.len()).arg(keys);
        call
    }
}

/// The same call with the source of the script, for a server that does not know
/// its hash: it was restarted, or is another one.
pub(super) fn with_source(call: &Cmd) -> Option<Cmd> {
    let mut arguments = call.args_iter().map(|argument| match argument {
        Arg::Simple(bytes) => bytes,
        _ => b"",
    });
    if arguments.next()? != b"EVALSHA" {
        return None;
    }
    let hash = arguments.next()?;
    let script = ALL.iter().find(|script| script.hash.as_bytes() == hash)?;
    let mut spelled = cmd("EVAL");
    spelled.arg(script.source);
    for argument in arguments {
        spelled.arg(argument);
    }
    Some(spelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_with_its_source_keeps_its_arguments() {
        let mut call = READ.on(&["key".to_owned()]);
        call.arg(b"\x00\xff").arg(7);
        let spelled = with_source(&call).expect("it is one of ours");
        let mut want = cmd("EVAL");
        want.arg(READ.source)
            .arg(1)
            .arg("key")
            .arg(b"\x00\xff")
            .arg(7);
        assert_eq!(spelled.get_packed_command(), want.get_packed_command());
        assert!(with_source(&cmd("TIME")).is_none());
    }
}
