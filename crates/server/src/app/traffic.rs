//! A tenant's traffic over time.

use std::time::Duration;

use redrive_core::{
    TenantId, Time,
    statistics::traffic::{self, Ended, Grain, Point, Range, Totals, Traffic},
};

use super::{App, AppError};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A tenant's traffic, as a chart shows it.
#[derive(Clone, Debug)]
pub struct TrafficSeen {
    /// How far back it reaches.
    pub range: Range,
    /// When it was looked at: the time that the last point lies in.
    pub now: Time,
    /// From the oldest on, without a gap.
    pub points: Vec<Point>,
    /// All of them together.
    pub total: Totals,
}

impl TrafficSeen {
    fn new(range: Range, now: Time, kept: Vec<(Time, Traffic)>) -> Self {
        let points = traffic::points(range, now, kept);
        let total = Totals::of(points.iter().map(|point| &point.traffic));
        Self { range, now, points, total }
    }
}

impl App {
    /// A tenant's traffic over time.
    pub async fn traffic(&self, tenant: TenantId, range: Range) -> Result<TrafficSeen, AppError> {
        let now = self.engine.clock().now();
        let kept = self.engine.traffic(tenant, range.grain(), range.axis(now).begin()).await?;
        Ok(TrafficSeen::new(range, now, kept))
    }

    /// The same, with how many deliveries ended within the last hour and the last day.
    pub(super) async fn traffic_lately(
        &self,
        tenant: TenantId,
        range: Range,
        now: Time,
    ) -> Result<(TrafficSeen, [Ended; 2]), AppError> {
        let begin = range.axis(now).begin();
        let minutes = self.engine.traffic(tenant.clone(), Grain::Minute, now.back(DAY)).await?;
        let lately = ended_in(&minutes, now);
        let kept = match range.grain() {
            Grain::Minute => minutes,
            Grain::Hour => self.engine.traffic(tenant, Grain::Hour, begin).await?,
        };
        Ok((TrafficSeen::new(range, now, kept), lately))
    }

    /// How many deliveries of a tenant ended within the last hour and the last day, to the minute.
    pub(super) async fn ended_lately(&self, tenant: TenantId, now: Time) -> Result<[Ended; 2], AppError> {
        Ok(ended_in(&self.engine.traffic(tenant, Grain::Minute, now.back(DAY)).await?, now))
    }
}

/// Adds up the minutes of the last hour, and of the last day.
fn ended_in(minutes: &[(Time, Traffic)], now: Time) -> [Ended; 2] {
    [HOUR, DAY].map(|span| {
        let from = traffic::lately(now, span);
        let mut sum = Ended::default();
        minutes.iter().filter(|(minute, _)| *minute >= from).for_each(|(_, one)| sum.add(one.ended));
        sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_lately_is_counted_to_the_minute() {
        let now = Time::parse("2026-03-02T10:17:42Z").unwrap();
        let minutes = [
            ("2026-03-01T10:16:00Z", 1),
            ("2026-03-01T10:17:00Z", 2),
            ("2026-03-02T09:16:00Z", 4),
            ("2026-03-02T09:17:00Z", 8),
            ("2026-03-02T10:17:00Z", 16),
        ];
        let minutes = minutes.map(|(start, dead)| {
            let ended = Ended { dead, ..Ended::default() };
            (Time::parse(start).unwrap(), Traffic { ended, ..Traffic::default() })
        });
        assert_eq!(ended_in(&minutes, now).map(|ended| ended.dead), [16, 28]);
    }
}
