//! The gateway's log: one JSON object per line, on standard error.
//!
//! The fields of the spans that a line is written in stand beside its own, so
//! that `operation_id` has one name whether a line states it or its span does.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{self, Format, Json, JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The names that every line has of its own.
const OWN_NAMES: [&str; 3] = ["timestamp", "level", "target"];

/// Writes the log to standard error, as far as the filter lets it.
pub(crate) fn to_stderr(filter: EnvFilter) {
    subscriber(filter, std::io::stderr).init();
}

fn subscriber<W>(filter: EnvFilter, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    tracing_subscriber::fmt()
        // It would report a closed standard error with `eprintln!`, which panics.
        .log_internal_errors(false)
        .fmt_fields(JsonFields::new())
        .event_format(FlatJson::new())
        .with_env_filter(filter)
        .with_writer(writer)
        .finish()
}

/// A line as JSON, with the fields of its spans beside its own.
struct FlatJson {
    line: Format<Json>,
}

impl FlatJson {
    fn new() -> Self {
        let line = format::format().json().flatten_event(true);
        Self {
            line: line.with_current_span(false).with_span_list(false),
        }
    }
}

impl<S, N> FormatEvent<S, N> for FlatJson
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let inherited = inherited_fields(context, event);
        if inherited.is_empty() {
            return self.line.format_event(context, writer, event);
        }
        let mut line = String::new();
        self.line
            .format_event(context, Writer::new(&mut line), event)?;
        writer.write_str(line.strip_suffix("}\n").ok_or(fmt::Error)?)?;
        for (name, value) in inherited {
            write!(writer, ",{}:{value}", Value::from(name))?;
        }
        writeln!(writer, "}}")
    }
}

/// The fields of the spans around an event, the innermost first, without those
/// that the line has itself.
fn inherited_fields<S, N>(
    context: &FmtContext<'_, S, N>,
    event: &Event<'_>,
) -> BTreeMap<String, Value>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    let mut inherited = BTreeMap::new();
    for span in context.event_scope().into_iter().flatten() {
        let extensions = span.extensions();
        let Some(fields) = extensions.get::<FormattedFields<N>>() else {
            continue;
        };
        // A span without fields has no JSON either.
        let fields: BTreeMap<String, Value> = serde_json::from_str(fields).unwrap_or_default();
        for (name, value) in fields {
            inherited.entry(name).or_insert(value);
        }
    }
    let own = event.metadata().fields();
    inherited.retain(|name, _| {
        own.field(name.as_str()).is_none() && !OWN_NAMES.contains(&name.as_str())
    });
    inherited
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut written = self.0.lock().expect("not poisoned");
            written.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(work: impl FnOnce()) -> Vec<String> {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = subscriber(EnvFilter::new("info"), move || writer.clone());
        tracing::subscriber::with_default(subscriber, work);
        let bytes = written.0.lock().expect("not poisoned").clone();
        let text = String::from_utf8(bytes).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    fn parsed(line: &str) -> Value {
        serde_json::from_str(line).expect("a line is JSON")
    }

    #[test]
    fn a_line_has_the_fields_of_its_spans_at_the_top() {
        let lines = logged(|| {
            let span = tracing::error_span!(
                "operation",
                operation_id = "op_1",
                fence = 6,
                tenant = "acme"
            );
            let _outer = span.entered();
            let span =
                tracing::error_span!("operation", operation_id = "op_1", fence = 7, target = "no");
            let _inner = span.entered();
            tracing::warn!(status = 404, note = r#"a "quote}" "#, "not delivered");
            tracing::debug!("below the filter");
        });
        let [line] = &lines[..] else {
            panic!("{lines:?}");
        };
        let fields = parsed(line);
        for (name, want) in [
            ("message", Value::from("not delivered")),
            ("level", Value::from("WARN")),
            ("target", Value::from(module_path!())),
            ("status", Value::from(404)),
            ("note", Value::from(r#"a "quote}" "#)),
            ("operation_id", Value::from("op_1")),
            ("fence", Value::from(7)),
            ("tenant", Value::from("acme")),
        ] {
            assert_eq!(fields[name], want, "{name} in {line}");
            let times = line.matches(&format!("\"{name}\":")).count();
            assert_eq!(times, 1, "{name} in {line}");
        }
        assert_eq!(fields.get("span"), None, "{line}");
    }

    #[test]
    fn a_lines_own_field_comes_first() {
        let lines = logged(|| {
            let span = tracing::error_span!("operation", operation_id = "op_1");
            let _entered = span.entered();
            tracing::info!(operation_id = "op_2", "another");
        });
        assert_eq!(parsed(&lines[0])["operation_id"], "op_2");
        assert_eq!(lines[0].matches("operation_id").count(), 1);
    }

    #[test]
    fn a_line_without_a_span_is_as_it_was() {
        let lines = logged(|| {
            tracing::info!(answer = 42, "alone");
            let _empty = tracing::info_span!("empty").entered();
            tracing::info!("in a span without fields");
        });
        assert_eq!(parsed(&lines[0])["answer"], 42);
        assert_eq!(parsed(&lines[1])["message"], "in a span without fields");
    }
}
