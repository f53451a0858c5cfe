-- An incident lasts from the opening of a circuit until it closes. Its first period has the time at which the circuit
-- closed; a period in which a half-open circuit was open again `continues` the incident.
ALTER TABLE circuit_periods
    ADD COLUMN continues boolean NOT NULL DEFAULT false,
    ADD COLUMN closed_at bigint;
UPDATE circuit_periods SET closed_at = ended_at;
CREATE INDEX circuit_periods_unresolved ON circuit_periods (webhook_id) WHERE closed_at IS NULL AND NOT continues;
DROP INDEX circuit_periods_by_tenant;
-- Not partial: the planner would use it for reads by webhook while the table is small.
CREATE INDEX circuit_periods_by_tenant ON circuit_periods (tenant_id, continues, opened_at);
