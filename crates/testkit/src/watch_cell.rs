//! A value behind a lock that wakes its waiters on every change, so that waiting needs no sleeps.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct WatchCell<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> WatchCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    /// Reads the value.
    pub(crate) fn read<R>(&self, reader: impl FnOnce(&T) -> R) -> R {
        reader(&self.value.lock())
    }

    /// Changes the value and wakes all waiters.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.value.lock());
        self.changed.notify_waiters();
        result
    }

    /// Waits until `look` returns `Some` for the value. Returns `None` after `within`.
    pub(crate) async fn wait_for<R>(&self, within: Duration, check: impl Fn(&T) -> Option<R>) -> Option<R> {
        let found = async {
            loop {
                // Registered before the check, so that no change in between is missed.
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if let Some(found) = self.read(&check) {
                    return found;
                }
                changed.await;
            }
        };
        tokio::time::timeout(within, found).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn wait_ends_with_a_change_or_a_timeout() {
        let number = std::sync::Arc::new(WatchCell::new(0));
        let found = |wanted: i32| move |number: &i32| (*number >= wanted).then_some(*number);
        assert_eq!(number.wait_for(Duration::from_millis(10), found(1)).await, None);

        let changing = std::sync::Arc::clone(&number);
        let changer =
            std::thread::spawn(move || (0..1000).for_each(|_| changing.change(|number| *number += 1)));
        assert_eq!(number.wait_for(crate::WAIT_TIMEOUT, found(1000)).await, Some(1000));
        changer.join().unwrap();
    }
}
