//! Every decoder of the protocol: it never panics, and what it reads is written so that it reads the same again.

use std::fmt::Debug;

use hicached_actors::protocol::*;
use serde::{Deserialize, Serialize};

/// An envelope with the body of its kind, or the body of the kind that the first byte chooses.
pub fn decoder(data: &[u8]) {
    if let Ok(envelope) = Envelope::decode(data) {
        let again = Envelope::decode(&encode(&envelope));
        assert_eq!(again.as_ref(), Ok(&envelope));
        // A name is read as it is written, or refused.
        if let Ok(sender) = Address::parse(&envelope.sender) {
            assert_eq!(Address::parse(&sender.to_string()), Ok(sender));
        }
        bodies(&envelope.kind, &envelope.body.0);
    }
    let Some((first, body)) = data.split_first() else { return };
    let kinds = kinds();
    bodies(kinds[usize::from(*first) % kinds.len()], body);
    same::<Envelope>(body);
    same::<Resync>(body);
    same::<CacheEvent>(body);
    same::<Refusal>(body);
    same::<Manifest>(body);
}

/// Every kind that any inbox knows, and those of answers.
pub fn kinds() -> Vec<&'static str> {
    let all = [
        Request::CODES,
        IndexNews::CODES,
        AllocatorIn::CODES,
        EvictorIn::CODES,
        WriterIn::CODES,
        LoaderIn::CODES,
        RankIn::CODES,
        Answer::CODES,
        Refusal::CODES,
    ];
    all.concat()
}

fn bodies(kind: &str, body: &[u8]) {
    macro_rules! in_turn {
        ($($inbox:ty),*) => {$(
            if let Some(Ok(read)) = <$inbox>::decode_body(kind, body) {
                let (code, written) = (read.code(), read.encode_body());
                assert_eq!(code, kind);
                assert_eq!(<$inbox>::decode_body(code, &written), Some(Ok(read)));
            }
        )*};
    }
    in_turn!(Request, IndexNews, AllocatorIn, EvictorIn, WriterIn, LoaderIn, RankIn, Answer, Refusal);
}

fn same<T: for<'de> Deserialize<'de> + Serialize + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(read) = decode::<T>(bytes) {
        assert_eq!(decode(&encode(&read)), Ok(read));
    }
}
