// Requests to the server, and the stream of updates.
const about = document.querySelector("meta[name=dashboard]").dataset;
export const root = about.root;
export const hasControls = about.controls === "yes";
export const mostRuns = Number(about.mostRuns);

function query(parameters) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const each of Array.isArray(value) ? value : [value]) if (each !== null && each !== undefined) found.append(name, each);
  }
  return found.toString();
}

async function answered(response) {
  let content;
  try {
    content = await response.json();
  } catch {
    content = {};
  }
  if (!response.ok) throw new Error(content.error || `The server answered ${response.status}.`);
  return content;
}

async function asked(...request) {
  let response;
  try {
    response = await fetch(...request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer; is its command still running?");
  }
  return answered(response);
}

export const get = (name, parameters = {}, signal = undefined) => asked(`/api/${name}?${query(parameters)}`, { signal });

export const post = (name, body) => asked(`/api/${name}`, {
  method: "POST",
  headers: { "content-type": "application/json", "x-dashboard-token": about.token },
  body: JSON.stringify(body),
});

export const reportAddress = (run) => `/report?${query({ run })}`;
export const studyReportAddress = (study) => `/study-report?${query({ study })}`;
export const sessionReportAddress = (session) => `/session-report?${query({ session })}`;
export const sessionReconciliationAddress = (session) => `/session-reconciliation?${query({ session })}`;

// One connection at a time. After a failure, it continues from the last received event.
export class Stream {
  constructor(onMessage, onState) {
    this.onMessage = onMessage;
    this.onState = onState;
    this.position = "";
  }

  open({ runs, metrics, position }) {
    this.close();
    this.choice = { run: runs, metric: metrics };
    this.position = position;
    this.connect();
  }

  connect() {
    const source = new EventSource(`/api/events?${query({ ...this.choice, after: this.position })}`);
    this.source = source;
    source.onopen = () => this.onState("live");
    source.onmessage = (event) => {
      this.position = event.lastEventId;
      this.onMessage(JSON.parse(event.data));
    };
    source.onerror = () => {
      this.onState("lost");
      if (source.readyState === EventSource.CLOSED) this.again = setTimeout(() => this.connect(), 3000);
    };
  }

  close() {
    clearTimeout(this.again);
    if (this.source) this.source.close();
    this.source = null;
  }
}
