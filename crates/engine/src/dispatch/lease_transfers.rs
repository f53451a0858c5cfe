//! Open lease transfers, so that the lease auditor does not suspect a lease that is committed and not enqueued yet.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

/// Interval between checks whether open transfers have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Counts transfers: operations that may commit leases and have not handed them to the dispatcher yet. Counted in two
/// phases, so that a check waits for those that were open when it read, and not for later ones.
#[derive(Default)]
pub(crate) struct LeaseTransfers {
    phase: AtomicUsize,
    open: [AtomicUsize; 2],
}

/// Open transfer; it ends on drop.
pub(crate) struct LeaseTransfer {
    transfers: Arc<LeaseTransfers>,
    phase: usize,
}

impl Drop for LeaseTransfer {
    fn drop(&mut self) {
        self.transfers.open[self.phase].fetch_sub(1, SeqCst);
    }
}

impl LeaseTransfers {
    /// Begins a transfer. Must be called before the store call that may commit leases.
    pub(crate) fn begin(self: &Arc<Self>) -> LeaseTransfer {
        let phase = self.phase.load(SeqCst) % 2;
        self.open[phase].fetch_add(1, SeqCst);
        LeaseTransfer { transfers: self.clone(), phase }
    }

    /// Waits until all transfers that are open now have ended. Returns false if that takes longer than `timeout`.
    pub(crate) async fn wait_for_open(&self, timeout: Duration) -> bool {
        let phase = self.phase.load(SeqCst) % 2;
        let waiting = async {
            // Open transfers of the other phase remain from a check that timed out.
            self.wait_for(1 - phase).await;
            self.phase.store(1 - phase, SeqCst);
            self.wait_for(phase).await;
        };
        tokio::time::timeout(timeout, waiting).await.is_ok()
    }

    async fn wait_for(&self, phase: usize) {
        while self.open[phase].load(SeqCst) > 0 {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn check_waits_for_open_transfers_only() {
        let transfers = Arc::new(LeaseTransfers::default());
        let short = Duration::from_millis(60);
        assert!(transfers.wait_for_open(short).await, "no transfer is open");
        let before = transfers.begin();
        assert!(!transfers.wait_for_open(short).await);
        let later = transfers.begin();
        assert!(!transfers.wait_for_open(short).await, "the first transfer is still open");
        drop(before);
        let waiting = tokio::spawn({
            let transfers = transfers.clone();
            async move { transfers.wait_for_open(Duration::from_secs(30)).await }
        });
        drop(later);
        assert!(waiting.await.is_ok_and(|ended| ended));
        let _later = transfers.begin();
        assert!(!transfers.wait_for_open(short).await);
    }
}
