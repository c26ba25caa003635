//! A change to a record, as the rules of `core` made it.

use onceward_core::clock::Timestamp;
use onceward_core::record::{Answer, Fence, Record, Reply};
use onceward_core::wire;
use redis::Cmd;

use super::layout::{self, How, NO_TOKEN};
use crate::checksum::seal;

/// A change to a record.
pub(super) struct Change<'a> {
    pub(super) how: How,
    /// When it happened, where `how` needs to know.
    pub(super) at: Timestamp,
    pub(super) record: &'a Record,
    pub(super) place: Place,
    pub(super) request: After<&'a [u8]>,
    pub(super) reply: After<&'a Reply>,
}

/// What a change does to the place of an operation in listings. What moves
/// wakes those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Moves,
    Stays,
}

/// What becomes of what lies beside a record: its request, its reply.
#[derive(Clone, Copy, Debug)]
pub(super) enum After<T> {
    Kept,
    Dropped,
    Put(T),
}

impl<'a> Change<'a> {
    /// A record that speaks for itself, in place of another.
    pub(super) fn whole(before: &Record, record: &'a Record, place: Place) -> Self {
        Self {
            how: How::Whole,
            at: Timestamp::default(),
            record,
            place,
            request: After::Kept,
            reply: match (&before.answer, &record.answer) {
                (Some(Answer::Kept(old)), Some(Answer::Kept(new))) if old == new => After::Kept,
                (_, Some(Answer::Kept(new))) => After::Put(new),
                (Some(Answer::Kept(_)), _) => After::Dropped,
                _ => After::Kept,
            },
        }
    }

    /// Its arguments in `lua/write.lua`, from the fourth on. The step is
    /// recognised by its token when it comes again.
    pub(super) fn tell(&self, step: &mut Cmd, token: u64) {
        let after = self.outcome();
        let token = match self.how {
            // A claim is recognised by its attempt.
            How::Granted => NO_TOKEN,
            _ => token.max(1),
        };
        step.arg(self.how as u8)
            .arg(self.at.unix_ms())
            .arg(layout::encode_rest(self.record, token))
            .arg(layout::end_of(&after));
        match after.due_at() {
            Some(due) => step.arg(due.unix_ms()),
            None => step.arg(""),
        };
        step.arg(match self.place {
            Place::Moves => "move",
            Place::Stays => "stay",
        });
        match self.request {
            After::Kept => step.arg("keep").arg(""),
            After::Dropped => step.arg("drop").arg(""),
            After::Put(request) => step.arg("put").arg(seal(request)),
        };
        match self.reply {
            After::Kept => step.arg("keep"),
            After::Dropped => step.arg("drop"),
            After::Put(reply) => step.arg("put").arg(wire::encode_reply(reply)),
        };
    }

    /// The record as it will be read, but for its fence.
    fn outcome(&self) -> Record {
        let mut record = self.record.clone();
        if matches!(self.how, How::Granted | How::Delivered) {
            record.grant(Fence(0), record.attempt, self.at);
        }
        record
    }
}
