# shellcheck shell=bash
# Functions for `bench/run --store postgres`, which sources this file: one throwaway server, a database for
# every case, and the history.

pg_pid='' pg_major=0

# --- the server ----------------------------------------------------------------------------------------

find_postgres() {
    local dir
    for dir in ${PATH//:/ } $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV); do
        if [[ -x $dir/initdb && -x $dir/pg_ctl && -x $dir/psql ]]; then
            pg_bin=$dir
            return
        fi
    done
    say 'PostgreSQL is not installed; on Debian or Ubuntu: apt-get install --no-install-recommends postgresql'
    exit 1
}

# Runs one of its programs as the server's user, since it refuses to run as root.
as_server() { # PROGRAM arguments…
    local program=$pg_bin/$1
    shift
    if ((EUID)); then "$program" "$@"; else
        (cd "$pg_data" && setpriv --reuid postgres --regid postgres --clear-groups "$program" "$@")
    fi
}

# Settings that the benchmark does not fix are those of a new installation, with a cache for a small machine.
start_postgres() {
    local version
    find_postgres
    pg_data=$work/postgres
    mkdir "$pg_data"
    if ((!EUID)); then
        id postgres >"$work/id" || { say 'PostgreSQL refuses root, and there is no user postgres'; exit 1; }
        chmod a+x "$work"
        chown postgres "$pg_data"
    fi
    as_server initdb -D "$pg_data" -U redrive -A trust -E UTF8 --locale=C.UTF-8 >>"$work/postgres.log" 2>&1 ||
        fail postgres 'cannot be set up (set RB_DIR to a directory that its user can access?)'
    cat >>"$pg_data/postgresql.conf" <<CONF
listen_addresses = '127.0.0.1'
port = $pg_port
unix_socket_directories = ''
max_connections = 200
shared_buffers = 256MB
fsync = on
synchronous_commit = on
CONF
    as_server pg_ctl -D "$pg_data" -w -l "$pg_data/log" start >>"$work/postgres.log" 2>&1 || {
        cat "$pg_data/log" >>"$work/postgres.log"
        fail postgres 'does not start'
    }
    pg_pid=$(head -1 "$pg_data/postmaster.pid")
    pg_major=$(($(sql 'SHOW server_version_num') / 10000))
    version=$(sql 'SHOW server_version')
    record case=server "version=\"${version%% *}\"" </dev/null
}

# The server is throwaway, so it is killed.
stop_postgres() {
    [[ -n $pg_pid ]] || return 0
    as_server pg_ctl -D "$pg_data" -s -m immediate stop || true
    pg_pid=''
}

# Processor time of the server and of all its processes, including ended ones.
pg_ticks() {
    { cat /proc/[0-9]*/stat 2>/dev/null || true; } | sed 's/ (.*) / /' | awk -v server="$pg_pid" '
        $1 == server { sum += $13 + $14 + $15 + $16 }
        $3 == server { sum += $13 + $14 }
        END { print sum }'
}

# --- databases -----------------------------------------------------------------------------------------

# Sets $psql to the command that queries a database.
psql_of() { # DATABASE
    psql=("$pg_bin/psql" -h 127.0.0.1 -p "$pg_port" -U redrive -d "$1" -qAtX -v ON_ERROR_STOP=1)
}

sql() { # STATEMENT
    local psql
    psql_of postgres
    "${psql[@]}" -c "$1"
}

# The database of a case is named after its directory.
database_of() { # DIR
    local name=${1##*/}
    printf '%s\n' "${name//-/_}"
}

database_url() { printf 'postgres://redrive@127.0.0.1:%s/%s\n' "$pg_port" "$(database_of "$1")"; } # DIR

pg_bytes() { sql "SELECT pg_database_size('$(database_of "$1")')"; } # DIR

# Sets $renewal to the command that replaces a database by a new one, or by a copy of $template. It ends with a
# checkpoint, so that no case includes the cost of writes of the previous one.
pg_renewal_of() { # DIR
    local psql name copy=''
    name=$(database_of "$1")
    psql_of postgres
    if [[ -n $template ]]; then
        copy="TEMPLATE $template"
        # The other strategy, where the server has one, would also write the whole copy to the log.
        ((pg_major < 15)) || copy+=' STRATEGY file_copy'
    fi
    renewal=("${psql[@]}" -c 'SET client_min_messages = warning' -c "DROP DATABASE IF EXISTS \"$name\" WITH (FORCE)"
        -c "CREATE DATABASE \"$name\" $copy" -c CHECKPOINT)
}

has_database() { [[ $(sql "SELECT 1 FROM pg_database WHERE datname = '$(database_of "$1")'") == 1 ]]; } # DIR

# --- history -------------------------------------------------------------------------------------------

# Fills the database `filled`, of which the cases get copies.
fill_history() {
    local dir=$work/filled psql at
    say "a history of $history deliveries"
    renew "$dir"
    start redrive "$dir"
    await_ready redrive
    # The history has its own webhooks, which do not subscribe to the events of the load.
    for ((at = 0; at < 10; at++)); do
        post redrive /v1/webhooks '{"url":"http://127.0.0.1:2/past","events":["bench.history"]}'
    done
    stop TERM
    if ((self_check)); then
        say 'self-check: the relay has other tables, which stay empty'
        return
    fi
    if [[ $store == sqlite ]]; then
        python3 "$here/fill_history.py" "$dir/redrive.db" "$history" 60 || fail redrive 'was not filled'
        record case=filled "deliveries=$history" "database_bytes=$(database_bytes "$dir")" </dev/null
        return
    fi
    psql_of filled
    "${psql[@]}" -v "n=$history" -v days=60 -f "$here/fill_history.sql" >>"$work/postgres.log" 2>&1 ||
        fail postgres 'was not filled'
    record case=filled "deliveries=$history" "database_bytes=$(pg_bytes "$dir")" </dev/null
}

list_times() {
    say 'first pages of the history'
    start redrive "$work/filled"
    await_ready redrive
    python3 "$here/list_times.py" "$api" 20 >"$work/listings.json" || fail redrive 'does not return its history'
    record case=listings "deliveries=$history" <"$work/listings.json"
    stop TERM
}
