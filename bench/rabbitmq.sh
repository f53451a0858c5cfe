# shellcheck shell=bash
# Functions for `bench/run --amqp`, which sources this file: one throwaway RabbitMQ server with its own port mapper
# (epmd).

mq_pid=''

find_rabbitmq() {
    local dir
    for dir in $(printf '%s\n' /usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin | sort -rV) ${PATH//:/ }; do
        if [[ -x $dir/rabbitmq-server ]]; then
            mq_bin=$dir
            return
        fi
    done
    say 'RabbitMQ is not installed; on Debian or Ubuntu: apt-get install --no-install-recommends rabbitmq-server'
    exit 1
}

# Except for its paths and ports, the settings are those of a new installation.
start_rabbitmq() {
    local user=() waited
    find_rabbitmq
    mq_data=$work/rabbitmq
    mkdir "$mq_data"
    printf 'listeners.tcp.local = 127.0.0.1:%s\nlog.console = true\nlog.file = false\n' "$mq_port" \
        >"$mq_data/rabbitmq.conf"
    printf '[].\n' >"$mq_data/enabled_plugins"
    printf 'redrivebench%s' "$RANDOM$RANDOM" >"$mq_data/.erlang.cookie"
    chmod 400 "$mq_data/.erlang.cookie"
    if ((!EUID)); then
        id rabbitmq >"$work/id" || { say 'RabbitMQ should not run as root, and there is no user rabbitmq'; exit 1; }
        chmod a+x "$work"
        chown -R rabbitmq "$mq_data"
        user=(--reuid rabbitmq --regid rabbitmq --clear-groups)
    fi
    # The port mapper ends with its server, because its parent process becomes that server.
    (
        cd "$mq_data"
        export HOME=$mq_data RABBITMQ_NODENAME=redrive-bench@localhost RABBITMQ_MNESIA_BASE=$mq_data/mnesia \
            RABBITMQ_LOG_BASE=$mq_data/log RABBITMQ_LOGS=- RABBITMQ_CONFIG_FILE=$mq_data/rabbitmq.conf \
            RABBITMQ_ADVANCED_CONFIG_FILE=$mq_data/none.config RABBITMQ_CONF_ENV_FILE=$mq_data/none.env \
            RABBITMQ_ENABLED_PLUGINS_FILE=$mq_data/enabled_plugins RABBITMQ_DIST_PORT=$mq_dist_port \
            ERL_EPMD_PORT=$mq_names_port ERL_EPMD_ADDRESS=127.0.0.1 RUNNING_UNDER_SYSTEMD=1 \
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}'
        # shellcheck disable=SC2016
        exec setpriv "${user[@]}" sh -c 'setpriv --pdeathsig=KILL epmd & sleep 0.5; exec "$0"' \
            "$mq_bin/rabbitmq-server"
    ) >>"$work/rabbitmq.log" 2>&1 &
    mq_pid=$!
    for ((waited = 0; waited < 600; waited++)); do
        grep -q 'Server startup complete\|started TCP listener' "$work/rabbitmq.log" &&
            (exec 3<>"/dev/tcp/127.0.0.1/$mq_port") 2>/dev/null && return
        kill -0 "$mq_pid" 2>/dev/null || break
        sleep 0.1
    done
    fail rabbitmq 'does not start'
}

# The server is throwaway, so it is killed.
stop_rabbitmq() {
    [[ -n $mq_pid ]] || return 0
    kill -KILL "$mq_pid" 2>/dev/null || true
    wait "$mq_pid" 2>/dev/null || true
    mq_pid=''
}

# Processor time of the server.
mq_ticks() { sed 's/.*) //' "/proc/$mq_pid/stat" | awk '{ print $12 + $13 }'; }
