//! The gateway's log: one JSON object per line, on standard error.
//!
//! The fields of the spans that a line is written in stand beside its own, so
//! that `operation_id` has one name whether a line states it or its span does.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Directive;
use tracing_subscriber::fmt::format::{self, Format, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The levels of a filter, in ascending order of detail.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The names that every line has of its own.
const OWN_NAMES: [&str; 3] = ["timestamp", "level", "target"];

/// Parses the value of `--log`: levels and `TARGET=LEVEL`, separated by commas.
///
/// [`EnvFilter`] alone takes any word for a target, so that a misspelt level would silence the
/// whole log, and takes an empty text or an empty level for a filter of its own.
pub(crate) fn parse_filter(text: &str) -> Result<EnvFilter, FilterError> {
    // EnvFilter does not expect spaces around a directive.
    let directives: Vec<_> = text.split(',').map(str::trim).collect();
    for directive in &directives {
        check_directive(directive)?;
    }
    let parsed = EnvFilter::builder().parse(directives.join(","));
    parsed.map_err(|_| FilterError::Malformed(text.to_owned()))
}

fn check_directive(directive: &str) -> Result<(), FilterError> {
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    match directive.rsplit_once('=') {
        None if directive.is_empty() => Err(FilterError::Empty),
        None if is_level(directive) => Ok(()),
        None => Err(FilterError::BareTarget(directive.to_owned())),
        Some((_, level)) if !is_level(level) => Err(FilterError::Level {
            directive: directive.to_owned(),
            level: level.to_owned(),
        }),
        Some((target, _)) if !is_target(target) || directive.parse::<Directive>().is_err() => {
            Err(FilterError::Malformed(directive.to_owned()))
        }
        Some(_) => Ok(()),
    }
}

/// Whether this is a module path, or the start of one, with or without a `[span]` after it.
fn is_target(text: &str) -> bool {
    let path = text.split_once('[').map_or(text, |(path, _)| path);
    path.chars()
        .all(|char| char.is_ascii_alphanumeric() || "_:-.".contains(char))
}

/// A value of `--log` that is not a filter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FilterError {
    Empty,
    BareTarget(String),
    Level { directive: String, level: String },
    Malformed(String),
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let levels = LEVELS.join(", ");
        match self {
            Self::Empty => write!(f, "a directive is empty; write one of {levels}"),
            Self::BareTarget(word) => write!(
                f,
                "`{word}` is not a level; write one of {levels}, or, if it is a target, {word}=debug"
            ),
            Self::Level { directive, level } => write!(
                f,
                "`{level}` in `{directive}` is not a level; write one of {levels}"
            ),
            Self::Malformed(directive) => write!(
                f,
                "`{directive}` is not a directive; write LEVEL or TARGET=LEVEL, separated by commas, such as info,onceward::access=off"
            ),
        }
    }
}

impl std::error::Error for FilterError {}

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
        .fmt_fields(SpanFields)
        .event_format(FlatJson::new())
        .with_env_filter(filter)
        .with_writer(writer)
        .finish()
}

/// The fields of a span, as members of a JSON object with a comma before each.
///
/// They are written when the span begins, which each operation does, and read only
/// if a line is logged within it. Therefore they are written directly, and not
/// collected into a map first, as `JsonFields` does.
struct SpanFields;

impl<'w> FormatFields<'w> for SpanFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut writing = FieldWriter {
            writer,
            result: Ok(()),
        };
        fields.record(&mut writing);
        writing.result
    }
}

struct FieldWriter<'w> {
    writer: Writer<'w>,
    result: fmt::Result,
}

impl FieldWriter<'_> {
    fn write(&mut self, field: &Field, value: impl fmt::Display) {
        if self.result.is_ok() {
            // Names of fields are identifiers with dots, which need no escape.
            self.result = write!(self.writer, ",\"{}\":{value}", field.name());
        }
    }
}

impl Visit for FieldWriter<'_> {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
        match value.bytes().all(is_plain) {
            true => self.write(field, format_args!("\"{value}\"")),
            false => self.write(field, Value::from(value)),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
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
        let object = format!("{{{}}}", fields.trim_start_matches(','));
        let fields: BTreeMap<String, Value> = serde_json::from_str(&object).unwrap_or_default();
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

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::level("warn", "warn")]
    #[case::capitals("WARN", "warn")]
    #[case::off("off", "off")]
    #[case::target("info,onceward::access=off", "onceward::access=off,info")]
    #[case::spaces(" info , onceward::access=off ", "onceward::access=off,info")]
    #[case::target_alone("onceward=debug", "onceward=debug")]
    #[case::span("onceward[operation]=debug", "onceward[operation]=debug")]
    #[case::field("[operation{fence=7}]=debug", "[operation{fence=7}]=debug")]
    fn a_filter_is_levels_and_targets_with_levels(#[case] text: &str, #[case] want: &str) {
        let filter = parse_filter(text).expect("a filter");
        assert_eq!(filter.to_string(), want);
    }

    #[rstest]
    #[case::empty(
        "",
        "a directive is empty; write one of off, error, warn, info, debug, trace"
    )]
    #[case::blank(
        " ",
        "a directive is empty; write one of off, error, warn, info, debug, trace"
    )]
    #[case::empty_first(
        ",onceward::access=off",
        "a directive is empty; write one of off, error, warn, info, debug, trace"
    )]
    #[case::misspelt(
        "inof",
        "`inof` is not a level; write one of off, error, warn, info, debug, trace, or, if it is a target, inof=debug"
    )]
    #[case::bare_target(
        "info,onceward::access",
        "`onceward::access` is not a level; write one of off, error, warn, info, debug, trace, or, if it is a target, onceward::access=debug"
    )]
    #[case::number(
        "3",
        "`3` is not a level; write one of off, error, warn, info, debug, trace, or, if it is a target, 3=debug"
    )]
    #[case::misspelt_after_a_target(
        "onceward=wrn",
        "`wrn` in `onceward=wrn` is not a level; write one of off, error, warn, info, debug, trace"
    )]
    #[case::no_level(
        "onceward=",
        "`` in `onceward=` is not a level; write one of off, error, warn, info, debug, trace"
    )]
    #[case::space_before_a_level(
        "onceward= warn",
        "` warn` in `onceward= warn` is not a level; write one of off, error, warn, info, debug, trace"
    )]
    #[case::no_target(
        "=debug",
        "`=debug` is not a directive; write LEVEL or TARGET=LEVEL, separated by commas, such as info,onceward::access=off"
    )]
    #[case::semicolon(
        "info;onceward=debug",
        "`info;onceward=debug` is not a directive; write LEVEL or TARGET=LEVEL, separated by commas, such as info,onceward::access=off"
    )]
    #[case::open_span(
        "onceward[x=debug",
        "`onceward[x=debug` is not a directive; write LEVEL or TARGET=LEVEL, separated by commas, such as info,onceward::access=off"
    )]
    fn any_other_text_is_refused(#[case] text: &str, #[case] want: &str) {
        let error = parse_filter(text).expect_err("no filter");
        assert_eq!(error.to_string(), want);
    }

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
