//! JSON log records: one flat object per line, with `timestamp`, `level`, `target`, `message` and the fields.

use std::fmt;

use serde_json::Value;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

/// Formatter of records.
pub(super) struct Lines;

/// Formatter of the fields of a record or a span, each preceded by a comma.
pub(super) struct Fields;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        writer.write_str(r#"{"timestamp":""#)?;
        SystemTime.format_time(&mut writer)?;
        write!(writer, r#"","level":"{}","target":"#, metadata.level().as_str().to_lowercase())?;
        write!(writer, "{}", Value::from(metadata.target()))?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        for span in context.event_scope().into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                writer.write_str(fields)?;
            }
        }
        writer.write_str("}\n")
    }
}

impl<'w> FormatFields<'w> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut pairs = Pairs { writer, result: Ok(()) };
        fields.record(&mut pairs);
        pairs.result
    }
}

struct Pairs<'w> {
    writer: Writer<'w>,
    result: fmt::Result,
}

impl Pairs<'_> {
    fn pair(&mut self, field: &Field, value: &Value) {
        // Macros write `r#type` for a field whose name is a keyword.
        let name = Value::from(field.name().trim_start_matches("r#"));
        self.result = self.result.and_then(|()| write!(self.writer, ",{name}:{value}"));
    }
}

impl Visit for Pairs<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.pair(field, &format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.pair(field, &value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.pair(field, &value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.pair(field, &value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.pair(field, &value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.pair(field, &value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.pair(field, &value.to_string().into());
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, sync::Arc};

    use parking_lot::Mutex;
    use tracing_subscriber::{fmt::MakeWriter, layer::SubscriberExt};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Written {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    fn written(log: impl FnOnce()) -> Vec<Value> {
        let written = Written::default();
        let lines = tracing_subscriber::fmt::layer().event_format(Lines).fmt_fields(Fields);
        let lines = lines.with_writer(written.clone()).with_ansi(false);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), log);
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn log_record_is_one_flat_json_object() {
        let odd = "a \"quote\",\na line\u{7}, \u{1f600} and \\";
        let lines = written(|| {
            let error = std::io::Error::other(odd);
            tracing::warn!(delivery_id = "dlv_1", count = 3, late = true, share = 0.5, %error, ?odd, "it {}", odd);
            let request = tracing::info_span!("request", request_id = "req_1", method = %"GET");
            request.in_scope(|| tracing::info!(minus = -1, "within"));
        });
        assert_eq!(lines.len(), 2);
        let line = &lines[0];
        assert_eq!(line["message"], format!("it {odd}"));
        assert_eq!((&line["level"], &line["delivery_id"]), (&"warn".into(), &"dlv_1".into()));
        assert_eq!((&line["count"], &line["late"], &line["share"]), (&3.into(), &true.into(), &0.5.into()));
        assert_eq!((&line["error"], &line["odd"]), (&odd.into(), &format!("{odd:?}").into()));
        assert_eq!(line["target"], "redrive_server::telemetry::json::tests");
        let time = line["timestamp"].as_str().unwrap();
        assert!(redrive_core::Time::parse(time).is_some() && time.ends_with('Z'), "{time}");
        let within = &lines[1];
        assert_eq!((&within["request_id"], &within["minus"]), (&"req_1".into(), &(-1).into()));
        assert!(lines.iter().flat_map(|line| line.as_object().unwrap().values()).all(|v| !v.is_object()));
    }
}
