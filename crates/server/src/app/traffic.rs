//! A tenant's traffic over time.

use std::time::Duration;

use redrive_core::{
    TenantId, Time,
    statistics::traffic::{self, EndedCounts, Point, Range, Resolution, Totals, Traffic},
};

use super::{App, AppError, TenantSelection};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Traffic of a tenant, for a chart.
#[derive(Clone, Debug)]
pub struct TrafficChart {
    /// Time range of the chart.
    pub range: Range,
    /// Time of the query, which falls into the last point.
    pub now: Time,
    /// Points, oldest first, without gaps.
    pub points: Vec<Point>,
    /// Sum of all points.
    pub total: Totals,
}

impl TrafficChart {
    pub(super) fn new(range: Range, now: Time, rollups: Vec<(Time, Traffic)>) -> Self {
        let points = traffic::points(range, now, rollups);
        let total = Totals::from_traffic(points.iter().map(|point| &point.traffic));
        Self { range, now, points, total }
    }
}

impl App {
    /// Returns a tenant's traffic over time.
    pub async fn traffic(&self, tenant_id: TenantId, range: Range) -> Result<TrafficChart, AppError> {
        let now = self.engine.clock().now();
        let rollups = self.engine.traffic(tenant_id, range.resolution(), range.axis(now).begin()).await?;
        Ok(TrafficChart::new(range, now, rollups))
    }

    /// Returns a tenant's traffic over time, and the deliveries that ended within the last hour and the last 24 hours.
    pub(super) async fn traffic_and_recent_ends(
        &self,
        tenant_id: TenantId,
        range: Range,
        now: Time,
    ) -> Result<(TrafficChart, [EndedCounts; 2]), AppError> {
        let begin = range.axis(now).begin();
        let minutes =
            self.engine.traffic(tenant_id.clone(), Resolution::Minute, now.saturating_sub(DAY)).await?;
        let recent_ends = ended_in(&minutes, now);
        let rollups = match range.resolution() {
            Resolution::Minute => minutes,
            Resolution::Hour => self.engine.traffic(tenant_id, Resolution::Hour, begin).await?,
        };
        Ok((TrafficChart::new(range, now, rollups), recent_ends))
    }

    /// Returns the deliveries that ended within the last hour and the last 24 hours, in whole minutes.
    pub(super) async fn recent_ends(
        &self,
        tenants: &TenantSelection,
        now: Time,
    ) -> Result<[EndedCounts; 2], AppError> {
        let (resolution, from) = (Resolution::Minute, now.saturating_sub(DAY));
        let minutes = match tenants {
            TenantSelection::One(view) => self.engine.traffic(view.id.clone(), resolution, from).await?,
            TenantSelection::All(_) => self.engine.traffic_of_all_tenants(resolution, from).await?,
        };
        Ok(ended_in(&minutes, now))
    }
}

/// Sums the minutes of the last hour and of the last 24 hours.
fn ended_in(minutes: &[(Time, Traffic)], now: Time) -> [EndedCounts; 2] {
    [HOUR, DAY].map(|span| {
        let from = traffic::recent_since(now, span);
        let mut sum = EndedCounts::default();
        minutes.iter().filter(|(minute, _)| *minute >= from).for_each(|(_, one)| sum.add(one.ended));
        sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_ends_are_counted_in_whole_minutes() {
        let now = Time::parse("2026-03-02T10:17:42Z").unwrap();
        let minutes = [
            ("2026-03-01T10:16:00Z", 1),
            ("2026-03-01T10:17:00Z", 2),
            ("2026-03-02T09:16:00Z", 4),
            ("2026-03-02T09:17:00Z", 8),
            ("2026-03-02T10:17:00Z", 16),
        ];
        let minutes = minutes.map(|(start, dead)| {
            let ended = EndedCounts { dead, ..EndedCounts::default() };
            (Time::parse(start).unwrap(), Traffic { ended, ..Traffic::default() })
        });
        assert_eq!(ended_in(&minutes, now).map(|ended| ended.dead), [16, 28]);
    }
}
