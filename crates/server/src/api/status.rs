//! `/v1/status`: health of the installation, for admins and for `redrive status`.

use axum::extract::State;
use redrive_core::{
    Role, Time,
    delivery::lane::Priority,
    maintenance::durability::Durability,
    statistics::status::{Finding, Level},
};
use redrive_store::Node;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    scope::{Authorized, ViewsAllTenants},
};
use crate::{
    app::status::Status,
    problem::{Problem, ReadProblems},
};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(status))
}

/// Health of an installation. Values that are currently unavailable are null.
#[derive(Serialize, ToSchema)]
struct StatusView {
    /// Level of the most severe finding.
    status: Level,
    /// Conditions that need attention, most severe first.
    findings: Vec<Finding>,
    /// Node that served this request.
    node: NodeView,
    /// Version of Redrive.
    version: &'static str,
    /// Start time of this node.
    #[schema(value_type = String, format = DateTime)]
    started_at: Time,
    /// All nodes of the cluster, including this one.
    nodes: Vec<NodeView>,
    /// State of the store.
    store: StoreView,
    /// Whether Redis is reachable; null if it is not configured.
    redis: Option<Reachability>,
    /// Whether RabbitMQ is reachable; null if it is not configured.
    rabbitmq: Option<Reachability>,
    /// Whether notification emails can be sent, as far as this node has tried; null if email is not configured.
    email: Option<Reachability>,
    /// Backlog of deliveries.
    queue: QueueView,
    /// Send slots of this node.
    slots: SlotsView,
    /// Circuits of the webhooks that this node tracks.
    circuits: TrackedCircuitsView,
    /// Number of dead deliveries that were not redriven.
    dead_letters: Option<u64>,
}

/// Whether a dependency is reachable.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Reachability {
    Up,
    Down,
}

impl Reachability {
    fn from_up(up: bool) -> Self {
        if up { Self::Up } else { Self::Down }
    }
}

/// Node of the cluster.
#[derive(Serialize, ToSchema)]
struct NodeView {
    /// Configured name of the node.
    name: String,
    /// Role of the node.
    role: Role,
    /// Worker pools that the node serves.
    pools: Vec<String>,
    /// Epoch of the node: a unique number for each start of a node.
    epoch: i64,
}

impl From<&Node> for NodeView {
    fn from(node: &Node) -> Self {
        let (name, pools) = (node.name.clone(), node.pools.clone());
        Self { name, role: node.role, pools, epoch: node.epoch.0 }
    }
}

/// State of the store.
#[derive(Serialize, ToSchema)]
struct StoreView {
    /// Kind of store.
    kind: String,
    /// Whether the store accepts writes.
    state: Reachability,
    /// Error, if the store does not accept writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<String>,
    /// PostgreSQL settings that determine whether commits survive a crash, as in effect in Redrive's sessions; null
    /// for SQLite.
    durability: Option<Durability>,
}

/// Backlog of deliveries.
#[derive(Serialize, ToSchema)]
struct QueueView {
    /// Number of deliveries waiting in the store.
    depth: Option<u64>,
    /// Waiting deliveries with high priority.
    high: Option<u64>,
    /// Waiting deliveries with normal priority, including ordered deliveries.
    normal: Option<u64>,
    /// Waiting deliveries with low priority.
    low: Option<u64>,
    /// Number of deliveries leased by nodes.
    leased: Option<u64>,
    /// Seconds since the most overdue delivery became due.
    lag_seconds: Option<f64>,
}

/// Send slots of the node.
#[derive(Serialize, ToSchema)]
struct SlotsView {
    /// Slots in use.
    used: usize,
    /// Total number of slots.
    total: usize,
}

/// Circuits that a node tracks, by state.
#[derive(Serialize, ToSchema)]
struct TrackedCircuitsView {
    /// Open circuits.
    open: usize,
    /// Half-open circuits.
    half_open: usize,
    /// Circuits open for more than one hour.
    open_over_1h: usize,
}

impl StatusView {
    fn new(status: &Status<'_>) -> Self {
        let waiting =
            |priority: Priority| status.vitals.as_ref().map(|vitals| vitals.waiting[priority as usize]);
        let (name, pools) = (status.identity.node.clone(), status.pools.to_vec());
        let node = || NodeView {
            name: name.clone(),
            role: status.role,
            pools: pools.clone(),
            epoch: status.epoch.0,
        };
        let nodes: Vec<_> = status.nodes.iter().map(NodeView::from).collect();
        Self {
            status: status.level(),
            findings: status.findings.clone(),
            node: node(),
            version: env!("CARGO_PKG_VERSION"),
            started_at: status.identity.started_at,
            // A store that is not shared lists no nodes: report this one.
            nodes: if nodes.is_empty() { vec![node()] } else { nodes },
            store: StoreView {
                kind: status.identity.store.clone(),
                state: Reachability::from_up(status.store_down.is_none()),
                error: status.store_down.clone(),
                durability: status.durability.clone(),
            },
            redis: status.redis.map(Reachability::from_up),
            rabbitmq: status.broker.map(Reachability::from_up),
            email: status.email.map(Reachability::from_up),
            queue: QueueView {
                depth: status.vitals.as_ref().map(|vitals| vitals.waiting.iter().sum()),
                high: waiting(Priority::High),
                normal: waiting(Priority::Normal),
                low: waiting(Priority::Low),
                leased: status.vitals.as_ref().map(|vitals| vitals.leased),
                lag_seconds: status.lag().map(|lag| lag.as_secs_f64()),
            },
            slots: SlotsView { used: status.load.unsettled, total: status.load.slots },
            circuits: TrackedCircuitsView {
                open: status.circuits.open,
                half_open: status.circuits.half_open,
                open_over_1h: status.circuits.open_over_an_hour,
            },
            dead_letters: status.vitals.as_ref().map(|vitals| vitals.dead),
        }
    }
}

/// Get the status of the installation
///
/// Served by every node, including workers, also while the store is unavailable. `redrive status` prints it.
#[utoipa::path(
    get, path = "/v1/status", operation_id = "getStatus", tag = "health",
    responses(
        (status = 200, description = "Status and findings", body = StatusView),
        ReadProblems,
    ),
)]
async fn status(
    State(app): State<AppState>,
    _: Authorized<ViewsAllTenants>,
) -> Result<axum::Json<StatusView>, Problem> {
    Ok(axum::Json(StatusView::new(&app.status().await)))
}
