# shellcheck shell=bash
# The cases of `bench/run --flow-control`, which sources this file. A case is named WHO-WHAT: `gated` is Redrive with
# every limit set so high that it is never reached, `redrive` the same program with nothing set, `baseline` the
# older one.

# 64 in flight instead of the default 5, so that flow control is measured and not round trips.
wide='{"max_in_flight":64}'
gated_webhook='{"max_in_flight":64,"rate_limit":{"requests_per_minute":6000000,"burst":1000000},
    "circuit_breaker_config":{"enabled":true}}'
# A storm is meant to fail 20,000 times in a row; an open circuit would block it.
storm_webhook='{"max_in_flight":64,"circuit_breaker_config":{"enabled":false}}'
gate_settings=(
    REDRIVE_LIMITS_TENANT_REQUESTS_PER_MINUTE=6000000
    REDRIVE_LIMITS_GLOBAL_REQUESTS_PER_SECOND=100000
)
idle_webhooks=10000

if [[ ${RB_PLAIN:-0} == 1 ]]; then
    gated_webhook=$wide storm_webhook=$wide gate_settings=()
fi

run_gates() {
    local cases=() what who whos=(redrive)
    [[ -z $baseline ]] || whos+=(baseline)
    check_gates
    for what in full neighbour greedy storm; do
        [[ -z $only || $only == "$what" ]] || continue
        [[ $what != full ]] || cases+=(gated-full)
        for who in "${whos[@]}"; do cases+=("$who-$what"); done
    done
    run_rounds run_gate ${cases[@]+"${cases[@]}"}
    [[ -z $only || $only == idle ]] || return 0
    for who in "${whos[@]}"; do idle "$who"; done
}

# Checks at the start that the program has every setting and every webhook field.
check_gates() {
    say 'checking flow control settings (RB_PLAIN=1 omits them)'
    local webhook
    start gated "$work/check"
    await_ready gated
    load_for gated
    for webhook in "$gated_webhook" "$storm_webhook"; do
        "${command_load[@]}" --events 0 --webhook-extra "$webhook" >"$work/load.json" ||
            fail gated 'does not have these settings'
    done
    stop TERM
}

run_gate() { # CASE
    local who=${1%-*} webhook=$wide
    case $1 in
        gated-full) measure "$1" gated --events "$events" --webhook-extra "$gated_webhook" ;;
        *-full) measure "$1" "$who" --events "$events" --webhook-extra "$wide" ;;
        *-neighbour) measure "$1" "$who" neighbour --seconds "$seconds" --webhook-extra "$wide" ;;
        *-greedy)
            measure "$1" "$who" neighbour --seconds "$seconds" --webhook-extra "$wide" --noisy-extra "$wide" ;;
        *-storm)
            [[ $who == baseline ]] || webhook=$storm_webhook
            measure "$1" "$who" storm --deliveries "$storm" --webhook-extra "$webhook" ;;
    esac
}

# Memory of a sender with idle webhooks: with none and with many.
idle() { # NAME
    local name=$1 dir=$work/$1-idle empty registered restarted
    say "$name: $idle_webhooks idle webhooks"
    # Each start but the first uses an existing database, so that the starts are comparable.
    start "$name" "$dir"
    await_ready "$name"
    stop TERM
    start "$name" "$dir"
    await_ready "$name"
    empty=$(resting_kb "$name")
    load_for "$name"
    "${command_load[@]}" --events 0 --fanout $idle_webhooks >"$work/load.json" ||
        fail "$name" 'did not accept the webhooks'
    registered=$(resting_kb "$name")
    stop TERM
    start "$name" "$dir"
    await_ready "$name"
    restarted=$(resting_kb "$name")
    record "case=$name-idle" "webhooks=$idle_webhooks" "rss_empty_kb=$empty" \
        "rss_registered_kb=$registered" "rss_restarted_kb=$restarted" </dev/null
    stop TERM
}
