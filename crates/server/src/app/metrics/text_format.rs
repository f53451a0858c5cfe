//! Prometheus text format 0.0.4, converted from OpenMetrics text, which is the only format that the metrics library
//! writes. Names, labels and values of samples stay the same; only their descriptions differ.

/// Suffixes of samples that exist only in OpenMetrics.
const CREATED_SUFFIX: &str = "_created";

/// Converts OpenMetrics text to the Prometheus text format.
///
/// A counter or info metric is described there by the name of its samples, `info` is a gauge, and there are no units, no
/// creation times, no exemplars and no end marker.
pub(super) fn from_openmetrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut family = Family::default();
    for line in text.lines() {
        if let Some(description) = line.strip_prefix("# HELP ") {
            let (name, help) = description.split_once(' ').unwrap_or((description, ""));
            // The type follows, and determines the name.
            family = Family { name, help, kind: "" };
        } else if let Some(description) = line.strip_prefix("# TYPE ") {
            let (name, kind) = description.split_once(' ').unwrap_or((description, "unknown"));
            let help = if name == family.name { family.help } else { "" };
            family = Family { name, help, kind };
            family.write(&mut out);
        } else if !line.starts_with('#') && !family.is_created(line) {
            out.push_str(without_exemplar(line));
            out.push('\n');
        }
    }
    out
}

/// Description of the samples that follow.
#[derive(Default)]
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    kind: &'a str,
}

impl Family<'_> {
    fn write(&self, out: &mut String) {
        let (suffix, kind) = match self.kind {
            "counter" => ("_total", "counter"),
            "info" => ("_info", "gauge"),
            "stateset" => ("", "gauge"),
            "gaugehistogram" => ("", "histogram"),
            kind @ ("gauge" | "histogram" | "summary") => ("", kind),
            _ => ("", "untyped"),
        };
        // OpenMetrics escapes double quotes in help, the text format does not.
        let help = self.help.replace("\\\"", "\"");
        out.push_str(&format!("# HELP {}{suffix} {help}\n# TYPE {}{suffix} {kind}\n", self.name, self.name));
    }

    /// Returns whether this is the creation time of a counter, histogram or summary.
    fn is_created(&self, sample: &str) -> bool {
        matches!(self.kind, "counter" | "histogram" | "summary")
            && sample
                .strip_prefix(self.name)
                .and_then(|rest| rest.strip_prefix(CREATED_SUFFIX))
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
    }
}

/// Returns a sample without its exemplar, which begins at a `#` outside of the labels.
fn without_exemplar(sample: &str) -> &str {
    let (mut in_value, mut escaped) = (false, false);
    for (index, char) in sample.char_indices() {
        match char {
            _ if escaped => escaped = false,
            '\\' if in_value => escaped = true,
            '"' => in_value = !in_value,
            '#' if !in_value => return sample[..index].trim_end(),
            _ => {}
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use prometheus_client::{
        encoding::text::encode,
        metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
        registry::Registry,
    };

    use super::from_openmetrics;

    #[test]
    fn encoded_registry_becomes_text_format_with_the_same_samples() {
        let mut registry = Registry::default();
        let by_tenant = Family::<[(&str, String); 1], Counter>::default();
        by_tenant.get_or_create(&[("tenant", "a\"b\\c # d".to_owned())]).inc();
        registry.register("events", "Events of \"all\" kinds", by_tenant);
        registry.register("depth", "Depth", Gauge::<i64>::default());
        registry.register("build", "Build", Info::new(vec![("version", "1.0")]));
        let histogram = Histogram::new([0.5, 1.0]);
        histogram.observe(0.7);
        registry.register("took_seconds", "Duration", histogram);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let expected = r#"# HELP events_total Events of "all" kinds.
# TYPE events_total counter
events_total{tenant="a\"b\\c # d"} 1
# HELP depth Depth.
# TYPE depth gauge
depth 0
# HELP build_info Build.
# TYPE build_info gauge
build_info{version="1.0"} 1
# HELP took_seconds Duration.
# TYPE took_seconds histogram
took_seconds_sum 0.7
took_seconds_count 1
took_seconds_bucket{le="0.5"} 0
took_seconds_bucket{le="1.0"} 1
took_seconds_bucket{le="+Inf"} 1
"#;
        assert_eq!(from_openmetrics(&text), expected);
    }

    #[test]
    fn parts_that_only_openmetrics_has_are_left_out() {
        let text = "# HELP size_bytes A \\\"size\\\" \\\\ it.\n# TYPE size_bytes counter\n# UNIT size_bytes bytes\n\
                    size_bytes_total{a=\"}\"} 2 # {trace_id=\"x\"} 1.0 1700000000.0\n\
                    size_bytes_created{a=\"}\"} 1700000000.0\n\
                    # TYPE state stateset\nstate{state=\"on\"} 1\n# TYPE what unknown\nwhat 1\n\
                    # TYPE was_created gauge\nwas_created 1\n# EOF\n";
        let expected = "# HELP size_bytes_total A \"size\" \\\\ it.\n# TYPE size_bytes_total counter\n\
                        size_bytes_total{a=\"}\"} 2\n\
                        # HELP state \n# TYPE state gauge\nstate{state=\"on\"} 1\n\
                        # HELP what \n# TYPE what untyped\nwhat 1\n\
                        # HELP was_created \n# TYPE was_created gauge\nwas_created 1\n";
        assert_eq!(from_openmetrics(text), expected);
    }
}
