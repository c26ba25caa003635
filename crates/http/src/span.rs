//! The span that carries an operation's ids into its log lines.

use onceward_core::identity::{Identity, OperationId};
use onceward_core::record::Fence;
use tracing::Span;

/// The span of all log lines of an operation, of a claim or a delivery. Its level
/// is that of errors, so that it exists whenever anything is logged.
pub fn operation_span(id: OperationId, fence: Fence, identity: &Identity) -> Span {
    tracing::error_span!(
        "operation",
        operation_id = %id,
        fence = fence.0,
        endpoint = identity.endpoint.as_str(),
        tenant = identity.caller.tenant(),
        project = identity.caller.project(),
    )
}
