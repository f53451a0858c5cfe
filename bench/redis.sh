# shellcheck shell=bash
# Functions for `bench/run --redis`, which sources this file: one throwaway Redis server without persistence.

redis_pid=''

start_redis() {
    local waited
    command -v redis-server >"$work/which" || {
        say 'Redis is not installed; on Debian or Ubuntu: apt-get install --no-install-recommends redis-server'
        exit 1
    }
    redis-server --port "$redis_port" --bind 127.0.0.1 --save '' --appendonly no --dir "$work" >>"$work/redis.log" 2>&1 &
    redis_pid=$!
    for ((waited = 0; waited < 100; waited++)); do
        (exec 3<>"/dev/tcp/127.0.0.1/$redis_port") 2>/dev/null && return
        sleep 0.05
    done
    fail redis 'does not start'
}

stop_redis() {
    [[ -n $redis_pid ]] || return 0
    kill -KILL "$redis_pid" 2>/dev/null || true
    wait "$redis_pid" 2>/dev/null || true
    redis_pid=''
}

# Processor time of the server.
redis_ticks() { sed 's/.*) //' "/proc/$redis_pid/stat" | awk '{ print $12 + $13 }'; }

# Batches that all processes have sent to it.
round_trips() {
    local at
    for at in "${addresses[@]}"; do
        curl -sf -H "Authorization: Bearer $REDRIVE_ADMIN_KEY" "http://$at/metrics"
    done | awk '/^redrive_redis_round_trips_total/ { sum += $2 } END { print sum + 0 }'
}
