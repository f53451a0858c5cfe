//! A mutex that cannot be locked any more after a thread has panicked while holding it: the state may be inconsistent.

use std::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

pub(super) struct PoisonMutex<T> {
    inner: Mutex<T>,
    poisoned: AtomicBool,
    /// Cancelled when the mutex is poisoned.
    signal: CancellationToken,
}

pub(super) struct PoisonGuard<'a, T> {
    inner: MutexGuard<'a, T>,
    mutex: &'a PoisonMutex<T>,
    /// The thread was panicking before it locked the mutex, so the state is not to blame.
    was_panicking: bool,
}

impl<T> PoisonMutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self { inner: Mutex::new(value), poisoned: AtomicBool::new(false), signal: CancellationToken::new() }
    }

    /// Locks the mutex.
    ///
    /// # Panics
    ///
    /// Panics if the mutex is poisoned.
    pub(super) fn lock(&self) -> PoisonGuard<'_, T> {
        let was_panicking = std::thread::panicking();
        let inner = self.inner.lock();
        let is_usable = !self.poisoned.load(Relaxed);
        assert!(is_usable || was_panicking, "the state is inconsistent after a panic; the process must end");
        PoisonGuard { inner, mutex: self, was_panicking }
    }

    /// Returns a token that is cancelled when the mutex is poisoned.
    pub(super) fn poisoned(&self) -> &CancellationToken {
        &self.signal
    }
}

impl<T> Drop for PoisonGuard<'_, T> {
    fn drop(&mut self) {
        if !self.was_panicking && std::thread::panicking() {
            self.mutex.poisoned.store(true, Relaxed);
            self.mutex.signal.cancel();
        }
    }
}

impl<T> Deref for PoisonGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for PoisonGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn panic_while_locked_poisons_and_panic_before_does_not() {
        let mutex = PoisonMutex::new(1);
        struct LockOnDrop<'a>(&'a PoisonMutex<i32>);
        impl Drop for LockOnDrop<'_> {
            fn drop(&mut self) {
                *self.0.lock() += 1;
            }
        }
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _drops = LockOnDrop(&mutex);
            panic!("while the mutex is free");
        }));
        assert!(unwound.is_err() && !mutex.poisoned().is_cancelled());
        assert_eq!(*mutex.lock(), 2);

        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let _guard = mutex.lock();
            panic!("while it is locked");
        }));
        assert!(unwound.is_err() && mutex.poisoned().is_cancelled());
        assert!(catch_unwind(AssertUnwindSafe(|| *mutex.lock())).is_err());
    }
}
