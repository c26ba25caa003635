//! Where the links of a problem lead: to the pages of a gateway, to pages that
//! an application serves, or nowhere.

use http::HeaderValue;

use super::{Code, WELL_KNOWN};

/// Where the links of a problem lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProblemLinks {
    /// The URL below which each code has its page.
    pages: Option<String>,
    /// The URL in `Link: <…>; rel="describedby"`.
    described_by: Option<String>,
}

impl ProblemLinks {
    /// No pages are served: `type` is `urn:onceward:problem:{code}`, which
    /// promises none.
    pub fn none() -> Self {
        Self::default()
    }

    /// The pages of a gateway at this site, such as `https://api.example.com`.
    pub fn of_gateway(site: &str) -> Self {
        Self {
            pages: Some(format!("{site}{WELL_KNOWN}/problems")),
            described_by: Some(format!("{site}{WELL_KNOWN}")),
        }
    }

    /// The pages below this URL, such as `https://api.example.com/problems`.
    pub fn below(url: &str) -> Self {
        let url = url.trim_end_matches('/');
        Self {
            pages: Some(url.to_owned()),
            described_by: Some(url.to_owned()),
        }
    }

    /// The `type` of a problem.
    pub(super) fn to_page(&self, code: Code) -> String {
        match &self.pages {
            Some(pages) => format!("{pages}/{}", code.as_str()),
            None => format!("urn:onceward:problem:{}", code.as_str()),
        }
    }

    /// The value of `Link`.
    pub(super) fn described_by(&self) -> Option<HeaderValue> {
        let url = self.described_by.as_ref()?;
        HeaderValue::from_str(&format!("<{url}>; rel=\"describedby\"")).ok()
    }
}
