//! Tests of properties that every chart must have.

use proptest::prelude::*;

use super::*;

const NOW: Time = Time::from_secs(1_700_000_000);

fn minutes(count: usize) -> TimeSlots {
    TimeBuckets::until(NOW, Duration::from_secs(60), count).into()
}

fn chart(unit: Unit) -> Chart<'static> {
    Chart { title: "Attempts", unit, slots: minutes(3) }
}

#[test]
fn slots_start_at_round_times_and_last_contains_now() {
    let slots = minutes(3);
    assert_eq!(slots.from, Time::from_secs(1_699_999_860));
    assert_eq!(slots.to(), Time::from_secs(1_700_000_040));
    assert_eq!(slots.describe_slot(0), "14 Nov, 22:11 UTC");
    let hours = TimeSlots::from(TimeBuckets::until(NOW, Duration::from_secs(3600), 2));
    assert_eq!(hours.describe_slot(1), "14 Nov, 22:00 – 23:00 UTC");
}

#[test]
fn bars_are_stacked_and_have_tooltips() {
    let rows =
        [Series::new("delivered", "good", [0.0, 6.0, 4.0]), Series::new("failed", "bad", [0.0, 2.0, 0.0])];
    let svg = chart(Unit::Count).bars(&rows).to_string();
    // The grid lines are 0, 2, 4, 6, 8: six is three quarters of the height, and two more reach the top.
    assert!(
        svg.contains(r#"<rect class="good" x="366.67" y="37.5" width="266.67" height="112.5"/>"#),
        "{svg}"
    );
    assert!(svg.contains(r#"<rect class="bad" x="366.67" y="0" width="266.67" height="37.5"/>"#), "{svg}");
    assert!(svg.contains(r#"data-tip="14 Nov, 22:12 UTC&#10;delivered: 6&#10;failed: 2""#), "{svg}");
    assert_eq!(svg.matches("data-tip").count(), 2, "a minute without values has no tooltip: {svg}");
    let label = "Attempts, 14 Nov, 22:11 UTC to 22:14: delivered 10 in total, at most 6; failed 2 in total, at most 2";
    assert!(svg.contains(&format!("role=\"img\" aria-label=\"{label}\"")), "{svg}");
}

#[test]
fn lines_are_interrupted_at_missing_values() {
    let row = |values| Series { name: "p50", tone: "one", values };
    let svg = chart(Unit::Millis).lines(&[row(vec![Some(10.0), None, Some(20.0)])]).to_string();
    assert_eq!(svg.matches("<polyline").count(), 2, "{svg}");
    assert!(
        svg.contains(r#"class="line one alone" points="166.67,75 166.67,75""#),
        "alone it is a dot: {svg}"
    );
    assert!(svg.contains("p50: 20 ms"), "{svg}");
    let svg = chart(Unit::Millis).lines(&[row(vec![Some(10.0), Some(5.0), Some(20.0)])]).to_string();
    assert_eq!(svg.matches("<polyline").count(), 1, "{svg}");
}

#[test]
fn empty_chart_is_described_as_empty() {
    let svg = chart(Unit::Count).bars(&[Series::new("delivered", "good", [])]).to_string();
    assert!(svg.contains("22:14: nothing"), "{svg}");
    assert!(!svg.contains("data-tip"));
}

#[test]
fn sparkline_keeps_small_values_visible() {
    let rows =
        [Series::new("delivered", "good", [1_000_000.0, 0.0]), Series::new("failed", "bad", [0.0, 1.0])];
    let svg = sparkline_svg("The last hour", &rows).to_string();
    assert!(svg.contains(r#"<rect class="bad" x="550" y="25" width="400" height="2"/>"#), "{svg}");
    assert!(svg.contains(r#"aria-label="The last hour: delivered: 1,000,000, failed: 1""#), "{svg}");
}

#[test]
fn bands_are_clipped_to_time_range() {
    let band = |from: u32, to: u32| TimeBand {
        from: Time::from_secs(from),
        to: Time::from_secs(to),
        tone: "bad",
        tip: "open <b>".into(),
    };
    let all = [band(0, 150), band(190, 190), band(500, 600)];
    let svg = bands("Open", Time::from_secs(100), Time::from_secs(200), &all).to_string();
    assert!(svg.contains(r#"<rect class="bad" x="0" width="500""#), "{svg}");
    assert!(svg.contains(r#"<rect class="bad" x="900" width="4""#), "a moment is still to be seen: {svg}");
    assert_eq!(svg.matches("class=\"bad\"").count(), 2, "what was later is not there: {svg}");
    assert!(svg.contains("open &lt;b&gt;") && !svg.contains("<b>"));
}

#[test]
fn legend_names_every_series_in_its_color() {
    let rows = [Series::new("a & b", "good", []), Series::new("c", "two", [])];
    let svg = legend(&rows).to_string();
    let series = r#"<span class="good">a &amp; b</span><span class="two">c</span>"#;
    assert_eq!(svg, format!(r#"<p class="legend">{series}<span class="zone">Times in UTC</span></p>"#));
}

#[test]
fn values_whose_sum_overflows_are_gaps() {
    let chart = Chart { title: "t", unit: Unit::Count, slots: minutes(1) };
    let rows = [Series::new("a", "good", [8.9e307]), Series::new("b", "bad", [8.9e307])];
    let svg = chart.bars(&rows).to_string();
    assert!(!svg.contains("inf") && !svg.contains("NaN"), "{svg}");
}

proptest! {
    #[test]
    fn any_values_produce_valid_svg(
        values in proptest::collection::vec(proptest::option::of(any::<f64>()), 0..8), count in 0..6usize,
    ) {
        let rows = [Series { name: "a", tone: "good", values: values.clone() }, Series { name: "b", tone: "bad", values }];
        let chart = Chart { title: "t", unit: Unit::Count, slots: minutes(count) };
        for svg in [chart.bars(&rows), chart.lines(&rows), sparkline_svg("t", &rows)] {
            let svg = svg.to_string();
            prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            prop_assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
            prop_assert!(!svg.contains("height=\"-") && !svg.contains("width=\"-"), "{svg}");
        }
    }
}
