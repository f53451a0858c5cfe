//! When calls are due. At a fixed rate the times are laid down beforehand, and a call that had to wait for a
//! free connection still counts from its time: a sender that stalls cannot hide the calls it held up.

use std::{error::Error, io, sync::Arc};

use tokio::{io::AsyncReadExt, net::unix::pipe, sync::Semaphore};

use crate::ledger::Ledger;

const SECOND: u64 = 1_000_000_000;

/// Gives out the turns to call.
pub(crate) enum Pace {
    /// Each connection calls again as soon as it is answered.
    Free,
    /// Call number n is due at `start + n × interval` nanoseconds.
    Fixed { start: u64, interval: u64, turns: Semaphore },
}

impl Pace {
    /// Starts the clock of `calls` calls. At a fixed rate the kernel's timer is asked directly, since
    /// tokio's own counts in whole milliseconds.
    pub(crate) fn start(
        rate: u32,
        batch: u32,
        calls: usize,
        connections: u32,
        ledger: &Ledger,
    ) -> Result<Arc<Self>, Box<dyn Error>> {
        if rate == 0 {
            return Ok(Arc::new(Self::Free));
        }
        let interval = (SECOND * u64::from(batch) / u64::from(rate)).max(1);
        let mut timer = arm(interval)?;
        let pace = Arc::new(Self::Fixed { start: ledger.now(), interval, turns: Semaphore::new(0) });
        let ticking = Arc::clone(&pace);
        tokio::spawn(async move {
            if let Err(error) = ticking.tick(&mut timer, calls, connections).await {
                eprintln!("the timer failed: {error}");
                std::process::exit(1);
            }
        });
        Ok(pace)
    }

    /// Waits for a turn.
    pub(crate) async fn turn(&self) {
        if let Self::Fixed { turns, .. } = self
            && let Ok(turn) = turns.acquire().await
        {
            turn.forget();
        }
    }

    /// The moment that call number `call` counts from.
    pub(crate) fn due(&self, call: usize, ledger: &Ledger) -> u64 {
        match self {
            Self::Free => ledger.now(),
            Self::Fixed { start, interval, .. } => start + interval * call as u64,
        }
    }

    async fn tick(&self, timer: &mut pipe::Receiver, calls: usize, connections: u32) -> io::Result<()> {
        let Self::Fixed { turns, .. } = self else { return Ok(()) };
        let mut left = calls;
        while left > 0 {
            let mut expired = [0; 8];
            timer.read_exact(&mut expired).await?;
            let due = usize::try_from(u64::from_ne_bytes(expired)).unwrap_or(left).min(left);
            turns.add_permits(due);
            left -= due;
        }
        // One more turn for each connection, so that all of them learn that no call is left.
        turns.add_permits(connections as usize);
        Ok(())
    }
}

/// A timer that fires now and then every `interval` nanoseconds; reading it gives the number of times it
/// fired since. To tokio it passes for a pipe, since it is read like one.
#[cfg(target_os = "linux")]
fn arm(interval: u64) -> Result<pipe::Receiver, Box<dyn Error>> {
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let every =
        Timespec { tv_sec: i64::try_from(interval / SECOND)?, tv_nsec: i64::try_from(interval % SECOND)? };
    let at_once = Timespec { tv_sec: 0, tv_nsec: 1 };
    timerfd_settime(
        &timer,
        TimerfdTimerFlags::empty(),
        &Itimerspec { it_interval: every, it_value: at_once },
    )?;
    Ok(pipe::Receiver::from_owned_fd_unchecked(timer)?)
}

/// The same without a kernel timer that can be read: a thread sleeps until each time and writes the count.
#[cfg(not(target_os = "linux"))]
fn arm(interval: u64) -> Result<pipe::Receiver, Box<dyn Error>> {
    use std::{
        io::Write,
        os::fd::OwnedFd,
        thread,
        time::{Duration, Instant},
    };

    let (reader, mut writer) = io::pipe()?;
    thread::spawn(move || {
        let start = Instant::now();
        let mut fired = 0_u64;
        loop {
            let elapsed = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let due = elapsed / interval + 1;
            // Fails once the reader is dropped: nothing waits for this timer any more.
            if due > fired && writer.write_all(&(due - fired).to_ne_bytes()).is_err() {
                return;
            }
            fired = due;
            thread::sleep(Duration::from_nanos((interval * fired).saturating_sub(elapsed)));
        }
    });
    Ok(pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?)
}
