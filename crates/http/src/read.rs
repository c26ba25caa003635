//! Reading a request's body whole, within a limit. Its trailers are dropped:
//! nothing that was checked in the headers may change afterwards.

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::body::BoxError;
use crate::problem::{Code, Problem};

/// Reads a body of at most `limit` bytes.
pub async fn read<B>(body: B, limit: usize) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let declared = body.size_hint().lower();
    if declared > limit as u64 {
        return Err(Problem::body_too_large(limit));
    }
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Problem::body_too_large(limit)),
        Err(error) => Err(Problem::new(
            Code::BadRequest,
            format!("The request body could not be read: {error}."),
        )),
    }
}
