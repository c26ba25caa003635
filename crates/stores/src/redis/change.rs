//! A change to a record, as the rules of `core` made it.

use onceward_core::clock::Timestamp;
use onceward_core::record::{Answer, Fence, Record, Reply};
use onceward_core::wire;
use redis::Cmd;

use super::layout::{self, NO_TOKEN, WriteKind};
use crate::checksum::seal;

/// A change to a record.
pub(super) struct RecordChange<'a> {
    pub(super) how: WriteKind,
    /// When it happened, if `how` needs it.
    pub(super) at: Timestamp,
    pub(super) record: &'a Record,
    pub(super) place: ListPosition,
    pub(super) request: Attachment<&'a [u8]>,
    pub(super) reply: Attachment<&'a Reply>,
}

/// The effect of a change on the operation's position in listings. A move also
/// wakes waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListPosition {
    Moves,
    Stays,
}

/// The effect of a change on the stored request or reply.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attachment<T> {
    Kept,
    Dropped,
    Put(T),
}

impl<'a> RecordChange<'a> {
    /// A complete record in place of another.
    pub(super) fn whole(before: &Record, record: &'a Record, place: ListPosition) -> Self {
        Self {
            how: WriteKind::Whole,
            at: Timestamp::default(),
            record,
            place,
            request: Attachment::Kept,
            reply: match (&before.answer, &record.answer) {
                (Some(Answer::Kept(old)), Some(Answer::Kept(new))) if old == new => {
                    Attachment::Kept
                }
                (_, Some(Answer::Kept(new))) => Attachment::Put(new),
                (Some(Answer::Kept(_)), _) => Attachment::Dropped,
                _ => Attachment::Kept,
            },
        }
    }

    /// Adds its arguments for `lua/write.lua`, from the fourth on. A repeated step is
    /// recognised by its token.
    pub(super) fn add_arguments(&self, step: &mut Cmd, token: u64) {
        let after = self.outcome();
        let token = match self.how {
            // A claim is recognised by its attempt.
            WriteKind::Granted => NO_TOKEN,
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
            ListPosition::Moves => "move",
            ListPosition::Stays => "stay",
        });
        match self.request {
            Attachment::Kept => step.arg("keep").arg(""),
            Attachment::Dropped => step.arg("drop").arg(""),
            Attachment::Put(request) => step.arg("put").arg(seal(request)),
        };
        match self.reply {
            Attachment::Kept => step.arg("keep"),
            Attachment::Dropped => step.arg("drop"),
            Attachment::Put(reply) => step.arg("put").arg(wire::encode_reply(reply)),
        };
    }

    /// The record as it will be read, except for its fence.
    fn outcome(&self) -> Record {
        let mut record = self.record.clone();
        if matches!(self.how, WriteKind::Granted | WriteKind::Delivered) {
            record.grant(Fence(0), record.attempt, self.at);
        }
        record
    }
}
