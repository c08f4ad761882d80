//! MessagePack as hicached writes it: structs are arrays to which fields are only appended, enums are
//! `[code, body]`, lists of ids are one `bin` each, and there are no maps and no floats.
//!
//! Derived decoders refuse an array with extra trailing elements, so `wire!` writes its own: extra
//! elements are skipped, and fields marked `= default` may be missing.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::{HostSlot, Incarnation, Key, Malformed, OpId, PageId, PeerPage, Position, Rank};

/// Declares a struct that crosses the wire as an array of its fields in order.
macro_rules! wire {
    ($($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$fmeta:meta])* pub $field:ident: $ty:ty $(= $default:ident)?),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $name { $($(#[$fmeta])* pub $field: $ty,)* }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeSeq as _;
                let seq = serializer.serialize_seq(Some(0 $(+ { let _ = stringify!($field); 1 })*))?;
                $(
                    let mut seq = seq;
                    seq.serialize_element(&self.$field)?;
                )*
                seq.end()
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Fields;
                impl<'de> serde::de::Visitor<'de> for Fields {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("the fields of ", stringify!($name), " as an array"))
                    }
                    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<$name, A::Error> {
                        let value = $name { $($field: $crate::protocol::codec::wire!(@field seq, $field $(, $default)?),)* };
                        while seq.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                        Ok(value)
                    }
                }
                deserializer.deserialize_seq(Fields)
            }
        }
    )*};
    (@field $seq:ident, $field:ident) => {
        match $crate::protocol::codec::element(&mut $seq, stringify!($field))? {
            Some(value) => value,
            None => return Err(serde::de::Error::missing_field(stringify!($field))),
        }
    };
    (@field $seq:ident, $field:ident, default) => {
        $crate::protocol::codec::element(&mut $seq, stringify!($field))?.unwrap_or_default()
    };
}
pub(crate) use wire;

/// Declares an enum of wire structs that crosses the wire as `[code, body]`.
macro_rules! wire_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$vmeta:meta])* $code:literal => $variant:ident($ty:ty)),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$vmeta])* $variant($ty),)* }

        impl $name {
            /// The code this variant has on the wire.
            pub const fn code(&self) -> &'static str {
                match self { $(Self::$variant(_) => $code,)* }
            }

            /// Every code of this enum, in order of declaration.
            pub const CODES: &'static [&'static str] = &[$($code),*];

            /// The body alone, for an envelope that carries the code as its kind.
            pub fn encode_body(&self) -> Vec<u8> {
                match self { $(Self::$variant(body) => $crate::protocol::codec::encode(body),)* }
            }

            /// Reads the body of a message of `kind`; `None` when this enum has no such kind.
            pub fn decode_body(kind: &str, body: &[u8]) -> Option<Result<Self, $crate::protocol::Malformed>> {
                match kind {
                    $($code => Some($crate::protocol::codec::decode(body).map(Self::$variant)),)*
                    _ => None,
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self { $(Self::$variant(body) => ($code, body).serialize(serializer),)* }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Pair;
                impl<'de> serde::de::Visitor<'de> for Pair {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("[code, body] of ", stringify!($name)))
                    }
                    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<$name, A::Error> {
                        let code: String = $crate::protocol::codec::wire!(@field seq, code);
                        let value = match code.as_str() {
                            $($code => $name::$variant($crate::protocol::codec::wire!(@field seq, body)),)*
                            unknown => return Err(serde::de::Error::unknown_variant(unknown, $name::CODES)),
                        };
                        while seq.next_element::<serde::de::IgnoredAny>()?.is_some() {}
                        Ok(value)
                    }
                }
                deserializer.deserialize_seq(Pair)
            }
        }

        $(impl From<$ty> for $name { fn from(body: $ty) -> Self { Self::$variant(body) } })*
    };
}
pub(crate) use wire_enum;

/// The next element of a wire array; a failure names the field.
pub(crate) fn element<'de, A: SeqAccess<'de>, T: Deserialize<'de>>(
    seq: &mut A,
    field: &'static str,
) -> Result<Option<T>, A::Error> {
    seq.next_element().map_err(|error| de::Error::custom(format_args!("{field}: {error}")))
}

/// Writes `value` as MessagePack.
///
/// # Panics
/// Never for wire types: writing to memory does not fail, and wire types hold nothing MessagePack lacks.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    rmp_serde::to_vec(value).expect("wire types always encode") // memory grows, and no wire type can fail
}

/// Reads `bytes` as one `T`; trailing bytes are refused.
///
/// # Errors
/// [`Malformed`] with the field and what was found there.
pub fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, Malformed> {
    let mut rest = bytes;
    let value = T::deserialize(&mut rmp_serde::Deserializer::new(&mut rest))
        .map_err(|error| Malformed::new("message", error, "its schema"))?;
    if !rest.is_empty() {
        return Err(Malformed::new("message", format_args!("{} bytes after its end", rest.len()), "0"));
    }
    Ok(value)
}

/// Bytes that ride as one `bin`.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bin(pub Vec<u8>);

impl fmt::Debug for Bin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bin[{}]", self.0.len())
    }
}

impl Serialize for Bin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(OfBytes(|bytes: &[u8]| Ok(Self(bytes.to_vec()))))
    }
}

/// Visits a `bin` and hands its bytes to the closure, whose error is a text.
struct OfBytes<F>(F);

impl<'de, T, F: FnOnce(&[u8]) -> Result<T, String>> Visitor<'de> for OfBytes<F> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bin")
    }
    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<T, E> {
        (self.0)(bytes).map_err(E::custom)
    }
}

macro_rules! bin16 {
    ($($name:ident),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_bytes(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_bytes(OfBytes(|bytes: &[u8]| {
                    bytes.try_into().map(Self).map_err(|_| format!("{} bytes, not 16", bytes.len()))
                }))
            }
        }
    )*};
}
bin16!(Key, Incarnation, OpId);

impl Serialize for Rank {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.0)
    }
}

impl<'de> Deserialize<'de> for Rank {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u8::deserialize(deserializer).map(Self)
    }
}

macro_rules! bin_u32_list {
    ($($(#[$meta:meta])* $name:ident of $item:ident),*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name(pub Vec<$item>);
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut bytes = Vec::with_capacity(self.0.len() * 4);
                for item in &self.0 {
                    bytes.extend_from_slice(&item.0.to_le_bytes());
                }
                serializer.serialize_bytes(&bytes)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_bytes(OfBytes(|bytes: &[u8]| {
                    let (words, rest) = bytes.as_chunks::<4>();
                    if !rest.is_empty() {
                        return Err(format!("{} bytes, not a multiple of 4", bytes.len()));
                    }
                    Ok(Self(words.iter().map(|word| $item(u32::from_le_bytes(*word))).collect()))
                }))
            }
        }
    )*};
}
bin_u32_list!(
    /// Logical pages, 4 bytes little-endian each.
    Pages of PageId,
    /// Host slots, 4 bytes little-endian each.
    Slots of HostSlot,
    /// Positions in a request, 4 bytes little-endian each.
    Positions of Position,
    /// Physical pages of a peer, 4 bytes little-endian each.
    PeerPages of PeerPage
);

/// Page keys, 16 bytes each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys(pub Vec<Key>);

impl Serialize for Keys {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|key| key.0).collect();
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(OfBytes(|bytes: &[u8]| {
            let (keys, rest) = bytes.as_chunks::<16>();
            if !rest.is_empty() {
                return Err(format!("{} bytes, not a multiple of 16", bytes.len()));
            }
            Ok(Self(keys.iter().map(|key| Key(*key)).collect()))
        }))
    }
}

/// One owner rank per page, one byte each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners(pub Vec<u8>);

impl Serialize for Owners {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Owners {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(OfBytes(|bytes: &[u8]| Ok(Self(bytes.to_vec()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    wire! {
        /// First version.
        struct Before { pub a: u32, pub keys: Keys }
        /// The same with a field appended.
        struct After { pub a: u32, pub keys: Keys, pub b: Vec<u64> = default }
    }

    #[test]
    fn extra_trailing_fields_are_skipped_and_missing_ones_are_defaulted() {
        let after = After { a: 7, keys: Keys(vec![Key([1; 16])]), b: vec![9; 1000] };
        let before: Before = decode(&encode(&after)).unwrap();
        assert_eq!((before.a, &before.keys), (after.a, &after.keys));
        let again: After = decode(&encode(&before)).unwrap();
        assert_eq!(again, After { b: vec![], ..after });
    }

    #[test]
    fn a_short_or_torn_message_is_refused_with_its_field() {
        let bytes = encode(&Before { a: 7, keys: Keys(vec![Key([1; 16])]) });
        for end in 0..bytes.len() {
            assert!(decode::<Before>(&bytes[..end]).is_err(), "cut to {end} bytes");
        }
        let odd = encode(&(7u32, Bin(vec![0; 17])));
        assert!(decode::<Before>(&odd).unwrap_err().value.contains("keys: 17 bytes"));
        let long = [&bytes[..], &[0]].concat();
        assert!(decode::<Before>(&long).unwrap_err().value.contains("1 bytes after its end"));
    }
}
