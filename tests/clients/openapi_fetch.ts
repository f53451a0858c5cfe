// Creates a webhook, publishes an event, lists its delivery and resends it, with the types of openapi-typescript.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";
import { assert, environment, until } from "./harness";

type Delivery = components["schemas"]["Delivery"];

async function main(): Promise<void> {
  const { url, key, receiver } = environment();
  const client = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${key}` } });

  const created = await client.POST("/v1/webhooks", {
    body: { url: receiver, events: ["order.*"], retry_config: { max_attempts: 3 }, max_in_flight: null },
  });
  const webhook = created.data ?? assert(`created: ${JSON.stringify(created.error)}`);
  const id: string = webhook.id;
  const description: string | null = webhook.description;
  if (description !== null) assert("no description was set");

  const published = await client.POST("/v1/events", {
    body: { event_type: "order.created", data: { order: 42 }, priority: "high" },
  });
  const event = published.data ?? assert(`published: ${JSON.stringify(published.error)}`);

  const list = async (): Promise<Delivery[]> => {
    const query = { webhook_id: [id], status: "delivered" as const, failure_category: undefined };
    const page = await client.GET("/v1/deliveries", { params: { query } });
    return (page.data ?? assert(`listed: ${JSON.stringify(page.error)}`)).data;
  };
  const [delivery] = await until(list, (found) => found.length === 1);
  if (delivery?.event_id !== event.id) assert("the delivery is of the event");

  const path = { id: delivery!.id };
  const resent = await client.POST("/v1/deliveries/{id}/retry", { params: { path } });
  if (resent.response.status !== 202) assert(`resent: ${JSON.stringify(resent.error)}`);
  const both = await until(list, (found) => found.length === 2);
  if (!both.some((one) => one.replay_of === delivery!.id && one.round === 2)) assert("the second round is listed");

  // An error has the documented shape.
  const wrong = await client.PATCH("/v1/webhooks/{id}", { params: { path: { id } }, body: { max_in_flight: 0 } });
  const [first] = wrong.error?.errors ?? assert("an error was returned");
  if (first?.field !== "max_in_flight" || first.code !== "out_of_range") assert(JSON.stringify(wrong.error));
}

main().catch((error: unknown) => assert(String(error)));
