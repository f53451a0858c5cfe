//! Decides whether a webhook must be sent from a single assigned node or may be sent from all nodes.

/// Everything that the decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct AssignmentInput {
    /// Whether its deliveries are ordered: order is kept only if one node sends all of them.
    pub ordered: bool,
    /// Whether it has its own rate limit: the tokens are in one bucket.
    pub rate_limited: bool,
    /// Whether its circuit is not closed or is forced, or the endpoint responded 429: probes and pauses are
    /// counted on one node, so that a failing endpoint does not get probes from every node.
    pub impaired: bool,
    /// Maximum requests in flight.
    pub max_in_flight: usize,
    /// Number of nodes that could send to it.
    pub sending_nodes: usize,
}

/// Returns whether a single node must send. With fewer slots than nodes, some nodes would get no slot, and the
/// deliveries they claimed would wait forever.
pub fn needs_assigned_node(input: &AssignmentInput) -> bool {
    input.ordered || input.rate_limited || input.impaired || input.max_in_flight < input.sending_nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: AssignmentInput = AssignmentInput {
        ordered: false,
        rate_limited: false,
        impaired: false,
        max_in_flight: 3,
        sending_nodes: 3,
    };

    #[test]
    fn each_reason_alone_requires_assignment() {
        assert!(!needs_assigned_node(&FREE));
        assert!(needs_assigned_node(&AssignmentInput { ordered: true, ..FREE }));
        assert!(needs_assigned_node(&AssignmentInput { rate_limited: true, ..FREE }));
        assert!(needs_assigned_node(&AssignmentInput { impaired: true, ..FREE }));
        assert!(needs_assigned_node(&AssignmentInput { max_in_flight: 2, ..FREE }));
    }

    #[test]
    fn single_sender_with_few_slots_needs_no_assignment() {
        assert!(!needs_assigned_node(&AssignmentInput { max_in_flight: 1, sending_nodes: 1, ..FREE }));
        assert!(!needs_assigned_node(&AssignmentInput { max_in_flight: 1, sending_nodes: 0, ..FREE }));
        assert!(
            needs_assigned_node(&AssignmentInput { ordered: true, sending_nodes: 1, ..FREE }),
            "another node may join at any time"
        );
    }
}
