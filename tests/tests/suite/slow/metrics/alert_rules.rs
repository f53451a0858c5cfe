//! The alert rules: their required content, and their check by `promtool`.

use redrive_testkit::promtool;

use super::{read, root};

/// Every required alert, with its severity.
const ALERTS: [(&str, &str); 25] = [
    ("RedriveCircuitOpen", "warning"),
    ("RedriveCircuitOpenForAnHour", "critical"),
    ("RedriveTenantDeadLetters", "warning"),
    ("RedriveDeadLetterRate", "warning"),
    ("RedriveDeadLettersGrowing", "warning"),
    ("RedriveTenantDeadLetterInflow", "warning"),
    ("RedriveSuccessRateLow", "warning"),
    ("RedriveWebhookSuccessRateLow", "warning"),
    ("RedriveFailingWebhooksUnnamed", "warning"),
    ("RedriveFailureCategorySpike", "warning"),
    ("RedriveWorkerPoolBusy", "warning"),
    ("RedriveQueueDepth", "critical"),
    ("RedriveInternalError", "warning"),
    ("RedriveNodeDown", "critical"),
    ("RedriveWorkersFailing", "critical"),
    ("RedriveTenantMetricsMissing", "warning"),
    ("RedriveDatabaseUnavailable", "critical"),
    ("RedriveServiceFailing", "warning"),
    ("RedriveStoreFailures", "warning"),
    ("RedriveRedisUnavailable", "critical"),
    ("RedriveRedisFallback", "warning"),
    ("RedriveRedisAndStoreDown", "critical"),
    ("RedriveRabbitMqUnavailable", "warning"),
    ("RedriveLeasesRecovered", "warning"),
    ("RedriveClockJumped", "critical"),
];

fn passes(words: &[&str], file: &str) {
    let path = root().join(file);
    let output = promtool(&[words, &[path.to_str().unwrap()]].concat());
    let message =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "promtool {words:?} {file}:\n{message}");
}

#[test]
fn every_alert_has_a_severity_and_a_runbook() {
    let (rules, runbooks) = (read("deploy/prometheus/alerts.yml"), read("docs/operations/runbooks.md"));
    let parts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    let named: Vec<&str> = parts.iter().map(|part| part.lines().next().unwrap()).collect();
    let mut expected: Vec<&str> = ALERTS.iter().map(|(name, _)| *name).collect();
    let mut sorted = named.clone();
    expected.sort_unstable();
    sorted.sort_unstable();
    assert_eq!(sorted, expected);
    for (alert, part) in named.iter().zip(parts) {
        let (_, severity) = ALERTS.iter().find(|(name, _)| name == alert).unwrap();
        assert!(part.contains(&format!("severity: {severity}\n")), "{alert}");
        let anchor = alert.to_lowercase();
        for field in ["summary: \"", "description: \"", &format!("docs/operations/runbooks.md#{anchor}\"")] {
            assert!(part.contains(field), "{alert} has no {field}");
        }
        let entry = runbooks.split("\n## ").find(|entry| entry.lines().next() == Some(alert));
        let entry = entry.unwrap_or_else(|| panic!("{alert} is not in the runbooks"));
        for part in ["**Page.**", "**What it means.**", "**How to check.**", "**What to do.**"] {
            assert!(entry.contains(part), "{alert}: no {part}");
        }
    }
    let entries = runbooks.split("\n## ").skip(1).filter_map(|entry| entry.lines().next());
    assert_eq!(entries.filter(|entry| entry.starts_with("Redrive")).count(), ALERTS.len(), "and no other");
}

#[test]
fn every_alert_is_tested_firing_and_silent() {
    let tests = read("deploy/prometheus/alerts.test.yml");
    for (alert, _) in ALERTS {
        assert!(tests.contains(&format!("alertname: {alert}, exp_alerts: []}}")), "{alert} is never quiet");
        let fires = format!("alertname: {alert}\n        exp_alerts:\n          - exp_labels:");
        assert!(tests.contains(&fires), "{alert} never fires");
    }
}

mod extended {
    use super::*;

    #[test]
    fn promtool_accepts_rules_example_config_and_rule_tests() {
        passes(&["check", "rules"], "deploy/prometheus/alerts.yml");
        passes(&["check", "config"], "deploy/prometheus/prometheus.yml");
        passes(&["test", "rules"], "deploy/prometheus/alerts.test.yml");
    }
}
