//! An event as it is queued: everything that its delivery needs, in one versioned
//! piece of bytes.
//!
//! The headers and the body are the provider's, to the byte. The destination is
//! the webhook's at the time of the event; it is used if the webhook no longer
//! exists when the event is delivered.

use std::net::{IpAddr, SocketAddr};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};

use crate::listen::peer::{Peer, Scheme};

/// The version of the bytes.
const VERSION: u8 = 1;

/// An event with its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuedEvent {
    /// The name of the upstream.
    pub(crate) upstream: String,
    /// The path at the upstream.
    pub(crate) path: String,
    /// The provider's connection.
    pub(crate) peer: Peer,
    /// The provider's headers.
    pub(crate) headers: HeaderMap,
    /// The provider's body.
    pub(crate) body: Bytes,
}

/// Why bytes cannot be read as an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueuedEventError {
    /// Written by a newer program.
    #[error("the event was written as version {0}, which this program does not know")]
    Version(u8),
    /// Changed or cut off since it was written.
    #[error("the event is damaged: its {0} cannot be read")]
    Damaged(&'static str),
}

impl QueuedEvent {
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.body.len() + 1024);
        bytes.put_u8(VERSION);
        let address = self.peer.address().ip().to_string();
        let host = self.peer.host().map(HeaderValue::as_bytes);
        put(&mut bytes, self.upstream.as_bytes());
        put(&mut bytes, self.path.as_bytes());
        put(&mut bytes, address.as_bytes());
        put(&mut bytes, self.peer.scheme().as_bytes());
        // A host is never empty.
        put(&mut bytes, host.unwrap_or_default());
        bytes.put_u32(self.headers.len() as u32);
        for (name, value) in &self.headers {
            put(&mut bytes, name.as_str().as_bytes());
            put(&mut bytes, value.as_bytes());
        }
        bytes.put_slice(&self.body);
        bytes.freeze()
    }

    /// The request to the upstream, before the gateway adds its headers.
    pub(crate) fn into_request(self) -> Request<Bytes> {
        let mut request = Request::new(self.body);
        *request.method_mut() = Method::POST;
        // A webhook's path is checked when the webhook is created.
        *request.uri_mut() = Uri::try_from(self.path).unwrap_or_default();
        *request.headers_mut() = self.headers;
        request
    }

    pub(crate) fn from_bytes(mut bytes: Bytes) -> Result<Self, QueuedEventError> {
        let damaged = QueuedEventError::Damaged;
        match bytes.try_get_u8() {
            Ok(VERSION) => {}
            Ok(other) => return Err(QueuedEventError::Version(other)),
            Err(_) => return Err(damaged("version")),
        }
        let upstream = text(&mut bytes).ok_or(damaged("upstream"))?;
        let path = text(&mut bytes).ok_or(damaged("path"))?;
        let address = text(&mut bytes).and_then(|text| text.parse::<IpAddr>().ok());
        let address = address.ok_or(damaged("sender's address"))?;
        let scheme = text(&mut bytes).and_then(|text| Scheme::parse(&text));
        let scheme = scheme.ok_or(damaged("scheme"))?;
        let host = take(&mut bytes).ok_or(damaged("host"))?;
        let host = match host.is_empty() {
            true => None,
            false => Some(HeaderValue::from_maybe_shared(host).map_err(|_| damaged("host"))?),
        };
        let count = bytes.try_get_u32().map_err(|_| damaged("headers"))?;
        let mut headers = HeaderMap::new();
        for _ in 0..count {
            let name = take(&mut bytes).and_then(|name| HeaderName::from_bytes(&name).ok());
            let value =
                take(&mut bytes).and_then(|value| HeaderValue::from_maybe_shared(value).ok());
            let (Some(name), Some(value)) = (name, value) else {
                return Err(damaged("headers"));
            };
            headers.append(name, value);
        }
        Ok(Self {
            upstream,
            path,
            peer: Peer::recorded(SocketAddr::new(address, 0), scheme, host),
            headers,
            body: bytes,
        })
    }
}

fn put(bytes: &mut BytesMut, part: &[u8]) {
    bytes.put_u32(part.len() as u32);
    bytes.put_slice(part);
}

fn take(bytes: &mut Bytes) -> Option<Bytes> {
    let length = bytes.try_get_u32().ok()? as usize;
    (length <= bytes.len()).then(|| bytes.split_to(length))
}

fn text(bytes: &mut Bytes) -> Option<String> {
    String::from_utf8(take(bytes)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event() -> QueuedEvent {
        let mut headers = HeaderMap::new();
        headers.append("stripe-signature", HeaderValue::from_static("t=1,v1=ab"));
        headers.append("x-twice", HeaderValue::from_static("one"));
        headers.append(
            "x-twice",
            HeaderValue::from_bytes(b"\xff two").expect("a value"),
        );
        QueuedEvent {
            upstream: "payments".to_owned(),
            path: "/hooks/stripe?a=b".to_owned(),
            peer: Peer::recorded(
                "192.0.2.7:0".parse().expect("an address"),
                Scheme::Https,
                Some(HeaderValue::from_static("api.example.com")),
            ),
            headers,
            body: Bytes::from_static(b"{\"id\":\"evt_1\"}\n\x00\xff"),
        }
    }

    #[test]
    fn a_round_trip_changes_nothing() {
        let without_host = QueuedEvent {
            peer: Peer::recorded("[::1]:0".parse().expect("an address"), Scheme::Http, None),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            ..event()
        };
        for event in [event(), without_host] {
            assert_eq!(QueuedEvent::from_bytes(event.to_bytes()), Ok(event));
        }
    }

    /// A newer program delivers what an older one queued.
    #[test]
    fn version_one_stays_readable() {
        let golden = concat!(
            "0100000008",
            "7061796d656e7473",
            "00000011",
            "2f686f6f6b732f7374726970653f613d62",
            "00000009",
            "3139322e302e322e37",
            "00000005",
            "6874747073",
            "0000000f",
            "6170692e6578616d706c652e636f6d",
            "00000003",
            "00000010",
            "7374726970652d7369676e6174757265",
            "00000009",
            "743d312c76313d6162",
            "00000007",
            "782d7477696365",
            "00000003",
            "6f6e65",
            "00000007",
            "782d7477696365",
            "00000005",
            "ff2074776f",
            "7b226964223a226576745f31227d0a00ff",
        );
        let golden = data_encoding::HEXLOWER.decode(golden.as_bytes());
        let golden = Bytes::from(golden.expect("hexadecimal"));
        assert_eq!(event().to_bytes(), golden);
        assert_eq!(QueuedEvent::from_bytes(golden), Ok(event()));
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let mut bytes = event().to_bytes().to_vec();
        bytes[0] = 255;
        let read = QueuedEvent::from_bytes(bytes.into());
        assert_eq!(read, Err(QueuedEventError::Version(255)));
    }

    proptest! {
        #[test]
        fn what_is_cut_off_before_the_body_is_damaged(end in 0usize..150) {
            let bytes = event().to_bytes();
            let head = bytes.len() - event().body.len();
            let read = QueuedEvent::from_bytes(bytes.slice(..end.min(head - 1)));
            prop_assert!(matches!(read, Err(QueuedEventError::Damaged(_))));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            let _ = QueuedEvent::from_bytes(bytes.into());
        }
    }
}
