//! The options that select operations.

use jiff::Timestamp;

use crate::admin::timestamps::{self, Direction};

#[derive(clap::Args, Clone)]
pub(super) struct Filter {
    /// Only operations of this tenant.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Only operations of this project.
    #[arg(long, value_name = "PROJECT")]
    project: Option<String>,
    /// Only operations of this endpoint.
    #[arg(long, value_name = "SERVICE.HANDLER")]
    endpoint: Option<String>,
    /// Only operations in this state: queued, running, completed, failed, released, unknown, paused or expired.
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Only operations with this key, as the client sent it.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only operations created since this time: 2h, 7d, or a timestamp in RFC 3339.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only operations created before this time.
    #[arg(long, value_name = "TIME")]
    before: Option<String>,
}

impl Filter {
    /// The options that were given, by the API's parameter names.
    pub(super) fn parameters(
        &self,
        now: Timestamp,
    ) -> anyhow::Result<Vec<(&'static str, Option<String>)>> {
        let time = |text: &Option<String>| {
            let parse = |text: &String| timestamps::parse(text, Direction::Past, now);
            text.as_ref().map(parse).transpose()
        };
        let parameters = vec![
            ("tenant", self.tenant.clone()),
            ("project", self.project.clone()),
            ("endpoint", self.endpoint.clone()),
            ("state", self.state.clone()),
            ("key", self.key.clone()),
            ("since", time(&self.since)?),
            ("before", time(&self.before)?),
        ];
        let given = parameters.into_iter().filter(|(_, value)| value.is_some());
        Ok(given.collect())
    }
}
