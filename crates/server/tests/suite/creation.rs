//! Commands on a database that does not exist: those that create it say so first, the others refuse and create nothing.

use crate::process::{MASTER_KEY, message, run, run_ok, stderr, stdout};

/// Returns the names in a folder and the folders below it.
fn names(folder: &std::path::Path) -> Vec<String> {
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    all.sort();
    all
}

#[test]
fn commands_that_create_a_database_say_so_first() {
    for arguments in [&["keys", "create"][..], &["keys", "create", "--admin"], &["migrate"]] {
        let folder = tempfile::tempdir().unwrap();
        let words = [arguments, &["--database-url", "sqlite:data/redrive.db"]].concat();
        let output = run(folder.path(), &words, &[]);
        assert!(output.status.success(), "{}", stderr(&output));
        let path = folder.path().join("data/redrive.db");
        let message = format!("There is no database at {}: creating it.\n", path.display());
        assert!(stderr(&output).starts_with(&message), "{arguments:?}: {}", stderr(&output));
        assert!(!stdout(&output).contains("creating"), "scripts read standard output: {}", stdout(&output));
        assert!(path.exists());
        let again = run(folder.path(), &words, &[]);
        assert!(again.status.success() && !stderr(&again).contains("creating"), "{}", stderr(&again));
    }
}

#[test]
fn server_logs_that_it_creates_a_database() {
    use crate::process::{ADMIN_KEY, redrive_command};
    use std::io::{BufRead, BufReader};

    let folder = tempfile::tempdir().unwrap();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--database-url", "sqlite:redrive.db"];
    let mut command = redrive_command(folder.path(), &arguments, &[ADMIN_KEY, MASTER_KEY, ("NO_COLOR", "1")]);
    let mut server =
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let log = BufReader::new(server.stderr.take().unwrap());
    let found = log.lines().map_while(Result::ok).find(|line| line.contains("creating a new database"));
    server.kill().unwrap();
    server.wait().unwrap();
    let path = folder.path().join("redrive.db").display().to_string();
    assert!(found.is_some_and(|line| line.contains(&path)));
}

#[test]
fn commands_that_only_read_refuse_a_missing_database() {
    let id = "key_0197a5e0000070008000000000000000";
    for arguments in [
        &["keys", "list"][..],
        &["keys", "list", "--admin"],
        &["keys", "revoke", id],
        &["secrets", "rotate-master-key"],
        &["backup", "copy.db"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let words = [arguments, &["--database-url", "sqlite:data/redrive.db"]].concat();
        let output = run(folder.path(), &words, &[MASTER_KEY]);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stdout(&output));
        let refusal = message(&stderr(&output));
        let path = folder.path().join("data/redrive.db");
        let expected = format!("there is no database at {}", path.display());
        assert!(
            refusal.starts_with(&expected) && refusal.contains("--database-url"),
            "{arguments:?}: {refusal}"
        );
        assert_eq!(names(folder.path()), Vec::<String>::new(), "{arguments:?} creates nothing");
    }
    let folder = tempfile::tempdir().unwrap();
    let copy = ["store", "copy", "--from", "sqlite:none.db", "--to", "postgres://me@127.0.0.1:1/x"];
    let missing = message(&stderr(&run(folder.path(), &copy, &[])));
    assert!(missing.contains("none.db") && missing.contains("does not exist"), "{missing}");
    let copy = ["store", "copy", "--from", "sqlite:none.db", "--to", "other"];
    let refused = message(&stderr(&run(folder.path(), &copy, &[])));
    assert!(refused.starts_with("--to: must be postgres://"), "{refused}");
    assert_eq!(names(folder.path()), Vec::<String>::new());
}

#[test]
fn commands_that_check_create_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let environment = [MASTER_KEY, crate::process::ADMIN_KEY, ("REDRIVE_ARCHIVE_URL", "archive")];
    let database = ["--database-url", "sqlite:data/redrive.db", "--listen", "127.0.0.1:0"];
    for command in [
        &["config", "check"][..],
        &["config", "check", "--dev"],
        &["config", "show"],
        &["doctor"],
        &["doctor", "--dev"],
    ] {
        let output = run(folder.path(), &[command, &database].concat(), &environment);
        assert!(
            output.status.code().is_some_and(|code| code < 2),
            "{command:?}: {}{}",
            stdout(&output),
            stderr(&output)
        );
        assert_eq!(names(folder.path()), Vec::<String>::new(), "{command:?}");
    }
    // The same holds for the keys that `redrive dev` creates at its first start.
    let output = run(folder.path(), &[&["config", "check", "--dev"], &database[..]].concat(), &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(names(folder.path()), Vec::<String>::new());
    let archive = run(folder.path(), &["archive", "list"], &environment);
    assert!(message(&stderr(&archive)).contains("archive: no such folder"), "{}", stderr(&archive));
}

#[test]
fn created_configuration_is_complete_and_private() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let environment = [MASTER_KEY, crate::process::ADMIN_KEY];
    let printed = run_ok(folder.path(), &["config", "init"], &[]);
    assert!(printed.contains("redrive config check --config redrive.toml"), "{printed}");
    let path = folder.path().join("redrive.toml");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let config = ["--config", "redrive.toml", "--listen", "127.0.0.1:0"];
    run_ok(folder.path(), &[&["config", "check"], &config[..]].concat(), &environment);
    let shown =
        |arguments: &[&str]| run_ok(folder.path(), &[&["config", "show"], arguments].concat(), &environment);
    assert_eq!(shown(&["--config", "redrive.toml"]), shown(&[]));
    let again = message(&stderr(&run(folder.path(), &["config", "init"], &[])));
    assert!(again.contains("redrive.toml exists; name another file"), "{again}");
    let no_folder = message(&stderr(&run(folder.path(), &["config", "init", "a b/c/redrive.toml"], &[])));
    let command = format!("create it with: mkdir -p '{}'", folder.path().join("a b/c").display());
    assert!(no_folder.contains(&command) && !folder.path().join("a b").exists(), "{no_folder}");
    assert!(!std::fs::read_to_string(&path).unwrap().ends_with("\n\n"));
    let set = ["config", "init", "other.toml", "--set", "server.listen=127.0.0.1:9", "--set", "role=api"];
    run_ok(folder.path(), &set, &[]);
    let other = shown(&["--config", "other.toml", "--database-url", "postgres://db/x"]);
    assert!(other.contains("listen = \"127.0.0.1:9\"") && other.contains("role = \"api\""), "{other}");
    let printed = run_ok(folder.path(), &["config", "init", "-"], &[]);
    assert_eq!(printed.trim_end(), std::fs::read_to_string(&path).unwrap().trim_end());
    let unknown =
        message(&stderr(&run(folder.path(), &["config", "init", "-", "--set", "server.listn=x"], &[])));
    assert!(unknown.contains("did you mean server.listen?"), "{unknown}");
}

#[test]
fn files_for_shells_and_manuals_are_written() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run_ok(folder.path(), &["completions", shell], &[]);
        assert!(script.contains("doctor") && script.contains("database-url"), "{shell}: {script}");
    }
    let printed = run_ok(folder.path(), &["man", "man1"], &[]);
    assert!(printed.contains("man man1/redrive.1"), "{printed}");
    let pages = names(&folder.path().join("man1"));
    assert!(
        pages.contains(&"redrive.1".to_owned()) && pages.contains(&"redrive-keys-create.1".to_owned()),
        "{pages:?}"
    );
    // The reader may close the pipe early.
    let script = format!("{} completions bash | head -n 1", env!("CARGO_BIN_EXE_redrive"));
    let output = std::process::Command::new("bash").args(["-o", "pipefail", "-c", &script]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
}
