//! A change to a record, as the rules of `core` made it.

use onceward_core::clock::Timestamp;
use onceward_core::record::{Answer, Fence, Record, Reply};
use onceward_core::wire;
use redis::Cmd;

use super::layout::{self, How};

/// A change to a record.
pub(super) struct Change<'a> {
    pub(super) how: How,
    /// When it happened, where `how` needs to know.
    pub(super) at: Timestamp,
    pub(super) record: &'a Record,
    pub(super) place: Place,
    pub(super) request: RequestAfter,
    pub(super) reply: ReplyAfter<'a>,
}

/// What a change does to the place of an operation in listings. What moves
/// wakes those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Moves,
    Stays,
}

/// What becomes of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestAfter {
    Kept,
    Dropped,
}

/// What becomes of the reply.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReplyAfter<'a> {
    Kept,
    Dropped,
    Put(&'a Reply),
}

impl<'a> Change<'a> {
    /// A record that speaks for itself, in place of another.
    pub(super) fn whole(before: &Record, record: &'a Record, place: Place) -> Self {
        Self {
            how: How::Whole,
            at: Timestamp::default(),
            record,
            place,
            request: RequestAfter::Kept,
            reply: match (&before.answer, &record.answer) {
                (Some(Answer::Kept(old)), Some(Answer::Kept(new))) if old == new => {
                    ReplyAfter::Kept
                }
                (_, Some(Answer::Kept(new))) => ReplyAfter::Put(new),
                (Some(Answer::Kept(_)), _) => ReplyAfter::Dropped,
                _ => ReplyAfter::Kept,
            },
        }
    }

    /// Its arguments in `lua/write.lua`, from the fourth on.
    pub(super) fn tell(&self, step: &mut Cmd) {
        let after = self.outcome();
        step.arg(self.how as u8)
            .arg(self.at.unix_ms())
            .arg(layout::encode_rest(self.record))
            .arg(layout::end_of(&after));
        match after.due_at() {
            Some(due) => step.arg(due.unix_ms()),
            None => step.arg(""),
        };
        step.arg(match self.place {
            Place::Moves => "move",
            Place::Stays => "stay",
        });
        step.arg(match self.request {
            RequestAfter::Kept => "keep",
            RequestAfter::Dropped => "drop",
        });
        match self.reply {
            ReplyAfter::Kept => step.arg("keep"),
            ReplyAfter::Dropped => step.arg("drop"),
            ReplyAfter::Put(reply) => step.arg("put").arg(wire::encode_reply(reply)),
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
