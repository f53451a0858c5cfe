# shellcheck shell=bash
# Functions for `bench/run --tenants`, which sources this file: the listings and pages over all tenants.

# Fills a store with tenants and their deliveries through Redrive's API and by writing rows, and times the first pages.
run_tenants() { # STORE…
    for store in "$@"; do
        [[ $store == sqlite || -n $pg_pid ]] || start_postgres
        time_tenants
    done
}

time_tenants() {
    local dir=$work/tenants-$store database sizes pids_of
    say "$store: $tenants tenants, $past deliveries"
    renew "$dir"
    start redrive "$dir"
    await_ready redrive
    REDRIVE_ADMIN_KEY=$REDRIVE_ADMIN_KEY python3 "$here/fill_tenants.py" create "$api" "$tenants" ||
        fail redrive 'did not create the tenants'
    stop TERM
    database=$dir/redrive.db
    [[ $store == sqlite ]] || database=$(database_url "$dir")
    PATH=$PATH:${pg_bin:-} python3 "$here/fill_tenants.py" fill "$database" "$past" || fail redrive 'was not filled'
    sizes=("tenants=$tenants" "deliveries=$past" "database_bytes=$(database_bytes "$dir")" "load_average=$(cut -d' ' -f1 /proc/loadavg)")
    start redrive "$dir"
    await_ready redrive
    pids_of=$(IFS=,; echo "${pids[*]}")
    [[ $store == sqlite ]] || pids_of+=,$pg_pid
    say "$store: first pages"
    python3 "$here/list_times.py" "$api" "$tenant_times" --all-tenants --idle "$tenant_idle" --pids "$pids_of" \
        >"$work/tenants.json" || fail redrive 'does not list all tenants'
    stop TERM
    record "case=tenants-$store" "${sizes[@]}" <"$work/tenants.json"
}
