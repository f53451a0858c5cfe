//! Checks of this machine: the listen address, limits of open files, folders, disk space, the clock and name resolution.

use std::{
    fs::{File, Metadata},
    io::Read,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, SystemTime},
};

use indicatif::HumanBytes;
use redrive_core::Time;
use redrive_engine::clock::Clock;
use rustix::{
    fs::{statfs, statvfs},
    process::{Resource, geteuid, getrlimit},
};

use super::{CliError, Finding, MAX_CLOCK_DIFFERENCE_SECONDS};
use crate::{
    cli::{check::try_listen, creation::shown_path, remote::Remote},
    config::{Backend, Config, Profile},
    files::{check_folder, folder_of, nearest_existing},
    shell::shell_word,
};

/// First bytes of every SQLite database.
const SQLITE_HEADER: &[u8; 16] = b"SQLite format 3\0";
/// Open files beside those of API connections and requests: the store, the log, listeners, brokers.
const OTHER_OPEN_FILES: u64 = 200;
/// Time for the server that listens to respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Free space below which a full disk is near.
const MIN_FREE_BYTES: u64 = 1 << 30;
/// File systems of other machines, by the number that the kernel gives them, on which SQLite's locks and shared memory do
/// not work reliably.
const NETWORK_FILE_SYSTEMS: [(i64, &str); 4] =
    [(0x6969, "NFS"), (0x517b, "SMB"), (0xff53_4d42, "CIFS"), (0xfe53_4d42, "SMB2")];

pub(super) async fn check(config: &Config, profile: Profile) -> Result<Vec<Finding>, CliError> {
    let mut findings = vec![check_listen_address(config, profile).await, check_open_files(config)];
    if let Backend::Sqlite(path) = config.database.backend()? {
        findings.push(check_database_folder(&path));
        findings.extend(check_database_file(&path));
        findings.extend(check_disk(&path));
    }
    findings.extend(check_name_servers(config));
    Ok(findings)
}

async fn check_listen_address(config: &Config, profile: Profile) -> Finding {
    let address = &config.server.listen;
    match try_listen(config, profile) {
        Ok(()) => Finding::ok("listen", format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => match runs_redrive(config).await {
            true => Finding::ok("listen", format!("a running Redrive listens on {address}")),
            false => Finding::critical(
                "listen",
                format!(
                    "{address} is in use by another program; stop it, or set server.listen to a free port"
                ),
            ),
        },
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Finding::critical(
            "listen",
            format!(
                "cannot listen on {address}: {error}; ports below 1024 need CAP_NET_BIND_SERVICE: set server.listen to a \
                 higher port, or give the service that capability"
            ),
        ),
        Err(error) => Finding::critical(
            "listen",
            format!(
                "cannot listen on {address}: {error}; set server.listen to an address and port of this machine"
            ),
        ),
    }
}

/// Returns whether a Redrive responds at the listen address.
async fn runs_redrive(config: &Config) -> bool {
    let remote = Remote::new(config, String::new(), "");
    let response = tokio::time::timeout(RESPONSE_TIMEOUT, remote.request("GET", "/healthz", None)).await;
    matches!(response, Ok(Ok((status, body))) if status.is_success() && &body[..] == b"ok\n")
}

fn check_open_files(config: &Config) -> Finding {
    let requests = if config.role.sends() { config.delivery.max_in_flight } else { 0 };
    let connections = if config.role.serves_api() { config.server.max_connections } else { 0 };
    let needed = OTHER_OPEN_FILES + requests as u64 + connections as u64;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Finding::warning(
            "open files",
            format!(
                "the limit of {limit} open files is below the {needed} that server.max_connections and \
                 delivery.max_in_flight allow; raise it (LimitNOFILE in systemd, ulimit -n in a shell), or lower them"
            ),
        ),
        Some(limit) => Finding::ok("open files", format!("limit {limit}, about {needed} needed")),
        None => Finding::ok("open files", "no limit"),
    }
}

/// Checks that the folder of the embedded database can be written.
fn check_database_folder(database: &Path) -> Finding {
    let folder = folder_of(database);
    let shown = shown_path(nearest_existing(folder));
    if let Err(error) = check_folder(folder) {
        return Finding::critical(
            "folder",
            format!(
                "{shown} cannot be written by this user: {error}; run as the user that owns it, make that user its owner \
                 with chown, or set database.url"
            ),
        );
    }
    let new = match database.exists() {
        true => "",
        false => " (the database does not exist yet; the first start creates it)",
    };
    Finding::ok("folder", format!("{shown} can be written{new}"))
}

/// Checks the owner and the permissions of the database, and the clock against its last change.
fn check_database_file(database: &Path) -> Vec<Finding> {
    let Ok(file) = std::fs::metadata(database) else { return Vec::new() };
    // Another file, or a folder, is reported as an unusable database; changing its permissions could break other programs.
    if !is_sqlite_file(database) {
        return Vec::new();
    }
    let shown = shown_path(database);
    let mut findings = Vec::new();
    if file.uid() != geteuid().as_raw() {
        findings.push(Finding::warning(
            "owner",
            format!(
                "{shown} belongs to the user with the id {}, and this is {}; run this command and the server as its owner",
                file.uid(),
                geteuid().as_raw()
            ),
        ));
    }
    findings.push(match file.mode() & 0o007 {
        0 => Finding::ok("permissions", format!("{shown} is not accessible to all users")),
        _ => Finding::warning(
            "permissions",
            format!(
                "{shown} contains payloads and is accessible to all users of this machine; run: chmod 600 {}",
                shell_word(&shown)
            ),
        ),
    });
    findings.extend(check_clock(&file, Clock::system().now()));
    findings
}

/// Returns whether a file begins like an SQLite database.
fn is_sqlite_file(path: &Path) -> bool {
    let mut head = [0; SQLITE_HEADER.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == *SQLITE_HEADER
}

/// Compares the clock with the last change of a file, which is not in the future unless the clock was set back.
fn check_clock(database: &Metadata, now: Time) -> Option<Finding> {
    let changed = database.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let ahead = i64::try_from(changed.as_secs()).ok()? - now.millis() / 1_000;
    Some(match ahead > MAX_CLOCK_DIFFERENCE_SECONDS {
        true => Finding::warning(
            "clock",
            format!(
                "this machine's clock is {ahead} s behind the last change of the database; correct it (timedatectl shows \
                 whether it is synchronized)"
            ),
        ),
        false => Finding::ok("clock", "not behind the last change of the database"),
    })
}

/// Checks the file system of the database: its kind and its free space.
fn check_disk(database: &Path) -> Vec<Finding> {
    let existing = nearest_existing(folder_of(database));
    let shown = shown_path(existing);
    let mut findings = Vec::new();
    findings.push(match statvfs(existing) {
        Ok(space) => describe_space(space.f_bavail.saturating_mul(space.f_frsize), &shown),
        Err(error) => Finding::warning(
            "disk",
            format!(
                "the free space in {shown} is unknown ({error}); check it with: df -h {}",
                shell_word(&shown)
            ),
        ),
    });
    if let Ok(system) = statfs(existing) {
        #[allow(clippy::unnecessary_cast, reason = "the type differs between systems")]
        findings.extend(describe_file_system(system.f_type as i64, &shown));
    }
    findings
}

fn describe_space(free: u64, shown: &str) -> Finding {
    let text = format!("{} free in {shown}", HumanBytes(free));
    match free < MIN_FREE_BYTES {
        true => Finding::warning(
            "disk",
            format!(
                "only {text}; publishes are refused when it is full: free some, or shorten retention.events"
            ),
        ),
        false => Finding::ok("disk", text),
    }
}

fn describe_file_system(number: i64, shown: &str) -> Option<Finding> {
    let (_, name) = NETWORK_FILE_SYSTEMS.into_iter().find(|(known, _)| *known == number & 0xffff_ffff)?;
    Some(Finding::critical(
        "file system",
        format!(
            "{shown} is on {name}, where SQLite can damage its database; set database.url to a local disk, or to PostgreSQL"
        ),
    ))
}

/// Checks that the names of endpoints can be resolved at all. No name is resolved.
fn check_name_servers(config: &Config) -> Option<Finding> {
    if !config.role.sends() {
        return None;
    }
    if !config.egress.dns_servers.is_empty() {
        return Some(Finding::ok("name servers", format!("{} configured", config.egress.dns_servers.len())));
    }
    let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let count = text.lines().filter(|line| line.trim_start().starts_with("nameserver")).count();
    Some(match count {
        0 => Finding::warning(
            "name servers",
            "/etc/resolv.conf names none, so host names of endpoints are not resolved; add one there, or set \
             egress.dns_servers",
        ),
        count => Finding::ok("name servers", format!("{count} in /etc/resolv.conf")),
    })
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::cli::doctor::Level;

    fn found<'a>(findings: &'a [Finding], subject: &str) -> &'a Finding {
        findings
            .iter()
            .find(|finding| finding.subject == subject)
            .unwrap_or_else(|| panic!("{subject}: {findings:?}"))
    }

    fn config_at(database: &Path) -> Config {
        let mut config = Config::defaults(Profile::Serve);
        config.server.listen = "127.0.0.1:0".parse().unwrap();
        config.database.url = format!("sqlite:{}", database.display()).as_str().into();
        config
    }

    #[tokio::test]
    async fn new_installation_has_no_findings_and_nothing_is_created() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("a/b/redrive.db");
        let findings = check(&config_at(&database), Profile::Serve).await.unwrap();
        for subject in ["listen", "folder"] {
            assert_eq!(found(&findings, subject).level, Level::Ok, "{findings:?}");
        }
        assert!(found(&findings, "folder").text.contains("does not exist yet"));
        assert!(found(&findings, "disk").text.contains("free in"));
        assert!(!folder.path().join("a").exists());
    }

    #[tokio::test]
    async fn listen_address_of_another_program_or_machine_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        // Closes every connection, so that the request for the health ends.
        let address = taken.local_addr().unwrap();
        std::thread::spawn(move || taken.incoming().for_each(drop));
        let mut config = config_at(&folder.path().join("redrive.db"));
        config.server.listen = address.into();
        let finding = check_listen_address(&config, Profile::Serve).await;
        assert_eq!(finding.level, Level::Critical);
        assert!(finding.text.contains("stop it, or set server.listen"), "{finding:?}");
        for elsewhere in ["192.0.2.1:80", "no-such-host.invalid:80"] {
            config.server.listen = elsewhere.parse().unwrap();
            let finding = check_listen_address(&config, Profile::Serve).await;
            assert_eq!(finding.level, Level::Critical, "{finding:?}");
            assert!(finding.text.contains(elsewhere), "{finding:?}");
        }
    }

    #[tokio::test]
    async fn folder_that_is_a_file_is_critical() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        let findings =
            check(&config_at(&folder.path().join("file/redrive.db")), Profile::Serve).await.unwrap();
        let finding = found(&findings, "folder");
        assert_eq!(finding.level, Level::Critical);
        assert!(finding.text.contains("not a directory") && finding.text.contains("chown"), "{finding:?}");
    }

    #[test]
    fn permissions_of_the_database_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("my redrive.db");
        std::fs::write(&database, SQLITE_HEADER).unwrap();
        assert!(check_database_file(folder.path()).is_empty(), "a folder is no database");
        let command = format!("run: chmod 600 '{}'", database.display());
        for (mode, level) in [(0o600, Level::Ok), (0o640, Level::Ok), (0o644, Level::Warning)] {
            std::fs::set_permissions(&database, std::fs::Permissions::from_mode(mode)).unwrap();
            let findings = check_database_file(&database);
            let finding = found(&findings, "permissions");
            assert_eq!(finding.level, level, "{mode:o}: {finding:?}");
            assert!(level == Level::Ok || finding.text.ends_with(&command), "{finding:?}");
        }
    }

    #[test]
    fn clock_behind_the_database_is_a_warning() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let file = file.as_file().metadata().unwrap();
        let changed = file.modified().unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let at = |seconds: u64| Time::from_millis(i64::try_from(seconds).unwrap() * 1_000);
        assert_eq!(check_clock(&file, at(changed)).unwrap().level, Level::Ok);
        let finding = check_clock(&file, at(changed - 3_600)).unwrap();
        assert_eq!(finding.level, Level::Warning);
        assert!(
            finding.text.contains("3600 s behind") && finding.text.contains("timedatectl"),
            "{finding:?}"
        );
    }

    #[test]
    fn full_disk_and_network_file_system_are_found() {
        assert_eq!(describe_space(10 << 30, "/data").level, Level::Ok);
        let finding = describe_space(10 << 20, "/data");
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.text.contains("only 10.00 MiB free in /data"), "{finding:?}");
        assert!(describe_file_system(0xef53, "/data").is_none(), "ext4");
        for number in [0x6969, 0xff53_4d42, -0x00ac_b2be] {
            let finding = describe_file_system(number, "/data").unwrap();
            assert!(finding.level == Level::Critical && finding.text.contains("a local disk"), "{finding:?}");
        }
    }

    #[test]
    fn low_limit_of_open_files_is_a_warning() {
        let mut config = Config::defaults(Profile::Serve);
        config.server.max_connections = 1;
        config.delivery.max_in_flight = 1;
        assert_eq!(check_open_files(&config).level, Level::Ok);
        config.server.max_connections = usize::MAX >> 1;
        let finding = check_open_files(&config);
        assert!(
            getrlimit(Resource::Nofile).current.is_none() || finding.text.contains("LimitNOFILE"),
            "{finding:?}"
        );
    }
}
