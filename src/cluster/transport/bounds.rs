//! What one answer of a server that is not the controller's own may cost. It is counted as it arrives: in memory, values
//! take many times their text.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http_body::{Body as HttpBody, Frame, SizeHint};
use kube::Client;
use kube::client::Body;
use tower::BoxError;

/// Bytes and values of one answer, and the words for that. As an extension of a request it replaces the bound that holds otherwise.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    /// So many bytes.
    pub bytes: usize,
    /// So many values; a value alone may take hundreds of bytes.
    pub values: usize,
    bytes_told: &'static str,
    /// The bound on values, in words.
    pub values_told: &'static str,
}

impl Most {
    /// What answers have to keep to otherwise: lists and discoveries.
    pub const ANY: Self = Self {
        bytes: 16 << 20,
        values: 500_000,
        bytes_told: "16 MiB",
        values_told: "half a million values",
    };
    /// For one object; etcd holds none of half that size.
    pub const OBJECT: Self = Self {
        bytes: 4 << 20,
        values: 200_000,
        bytes_told: "4 MiB",
        values_told: "200,000 values",
    };
    /// For what is always small, failures among it.
    pub const SMALL: Self = Self {
        bytes: 1 << 20,
        values: 50_000,
        bytes_told: "1 MiB",
        values_told: "50,000 values",
    };
}

/// An answer passed its bound.
#[derive(Debug, thiserror::Error)]
#[error("the answer is larger than {limit}")]
pub struct TooMuch {
    /// The bound, in words.
    pub limit: &'static str,
}

/// The client, with every answer held to the bounds.
pub fn within_bounds(client: Client) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let most = request.extensions().get::<Most>().copied().unwrap_or(Most::ANY);
        async move {
            let response = client.send(request).await?;
            let most = if response.status().is_success() {
                most
            } else {
                Most::SMALL
            };
            Ok::<_, kube::Error>(response.map(|body| Counted {
                body,
                left: most.bytes,
                most,
                values: Values::default(),
            }))
        }
    });
    Client::new(service, "default")
}

/// A body that fails once it is too much.
struct Counted {
    body: Body,
    most: Most,
    left: usize,
    values: Values,
}

impl Counted {
    fn count(&mut self, data: &[u8]) -> Result<(), TooMuch> {
        let too_much = |limit| Err(TooMuch { limit });
        match self.left.checked_sub(data.len()) {
            Some(left) => self.left = left,
            None => return too_much(self.most.bytes_told),
        }
        if self.values.add(data) > self.most.values {
            return too_much(self.most.values_told);
        }
        Ok(())
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(kube::Error::Service(cause))) => return Poll::Ready(Some(Err(cause))),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        };
        let counted = frame.data_ref().map_or(Ok(()), |data| self.count(data));
        Poll::Ready(Some(counted.map(|()| frame).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Counts the values of a JSON text, roughly, in whatever pieces it comes.
#[derive(Debug, Default)]
struct Values {
    found: usize,
    quoted: bool,
    escaped: bool,
}

impl Values {
    /// How many there are with those of a further piece.
    fn add(&mut self, text: &[u8]) -> usize {
        for byte in text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = self.quoted,
                b'"' => self.quoted = !self.quoted,
                b',' | b'[' | b'{' if !self.quoted => self.found += 1,
                _ => {}
            }
        }
        self.found + 1
    }
}

/// How many values a JSON text holds, roughly.
pub fn values_in(text: &[u8]) -> usize {
    Values::default().add(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rules: decisions 7 memory
    #[test]
    fn nesting_makes_values_and_marks_within_strings_do_not() {
        let text = br#"{"a": [1, 2], "b": "x,\",[{,\\", "c": 3}"#;
        assert_eq!(values_in(text), 6);
        assert_eq!(values_in(b"[[[0]]]"), 4);
        for cut in 0..text.len() {
            let (one, two) = text.split_at(cut);
            let mut values = Values::default();
            values.add(one);
            assert_eq!(values.add(two), 6, "cut at {cut}");
        }
    }
}
