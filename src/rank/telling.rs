//! What a rank says beside acknowledgements: refusals to whoever asked, and news to the index.

use hicached_actors::machine::{Effect, Sender};
use hicached_actors::protocol::{
    Address, Answer, IndexNews, LoaderIn, OpId, Outgoing, ReceiverIn, Refusal, Rejected, SenderIn, WriterIn,
};

use super::machine::RankMachine;

impl RankMachine {
    /// Tells the sender that its message was not followed.
    pub(super) fn reject(&mut self, from: &Sender, refusal: Refusal, out: &mut Vec<Effect>) {
        self.counts.refused += 1;
        let rejected = Rejected { refusal };
        let to = match from.address {
            Address::Index => Outgoing::Index(IndexNews::Rejected(rejected)),
            Address::Writer => Outgoing::Writer(WriterIn::Rejected(rejected)),
            Address::Loader => Outgoing::Loader(LoaderIn::Rejected(rejected)),
            Address::Sender => Outgoing::Sender(SenderIn::Rejected(rejected)),
            Address::Receiver => Outgoing::Receiver(ReceiverIn::Rejected(rejected)),
            Address::Engine => {
                let Some(to) = from.reply.clone() else { return };
                return out.push(Effect::Reply { to, op: from.op, answer: Answer::Refused(rejected.refusal) });
            }
            // Nobody of these ever asks a rank for anything: counted, and that is all.
            Address::Allocator | Address::Evictor | Address::Rank(_) => return,
        };
        out.push(Effect::Send { to, op: from.op, trace: from.trace.clone() });
    }
}

/// A message to the index.
pub(super) fn to_index(news: IndexNews, op: OpId, out: &mut Vec<Effect>) {
    out.push(Effect::Send { to: Outgoing::Index(news), op, trace: None });
}
