//! The PostgreSQL server that all test processes share.

use std::{
    fs::{self, File},
    path::Path,
    process::Stdio,
    sync::OnceLock,
};

use super::{programs::Programs, session};
use crate::service::{ErrorContext, Server, SharedService, acquire_shared, block_on, free_port};

/// Settings that trade durability for speed: no data here has to survive a power failure.
const SETTINGS: [&str; 5] = [
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=64MB",
    "max_connections=400",
];

struct Shared;

impl SharedService for Shared {
    const NAME: &'static str = "postgres";

    fn prepare(folder: &Path, alive: Stdio) -> Server {
        let programs = Programs::find();
        programs.make_cluster(folder, alive);
        let port = free_port();
        fs::write(folder.join("port"), port.to_string()).with_context(folder);
        programs.server("INT", folder, port, &SETTINGS)
    }

    fn is_ready(folder: &Path) -> bool {
        port_in(folder).is_some_and(|port| block_on(session::is_ready(port, folder)))
    }
}

fn port_in(folder: &Path) -> Option<u16> {
    fs::read_to_string(folder.join("port")).ok()?.parse().ok()
}

/// Returns the port of the shared server, which keeps running while this process lives. Blocks while it starts.
pub(super) fn port() -> u16 {
    static SHARED: OnceLock<(u16, File)> = OnceLock::new();
    let find = || {
        let (folder, users) = acquire_shared::<Shared>();
        (port_in(&folder).expect("a server that is ready has a port"), users)
    };
    SHARED.get_or_init(find).0
}
