"""Alerts and dashboard of deploy/monitoring ask for what a running server has, and alerts fire when
they should. Where promtool and prometheus are installed, these have their say, too.
"""

import concurrent.futures
import contextlib
import json
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request

import pytest
import yaml

import checkpoint
import harness
from harness import ROOT, eventually, free_port

FOLDER = ROOT / "deploy/monitoring"
KEY = "sk-watching-0123456789"
PROMETHEUS_LABELS = {"job", "instance"}  # which it adds to all that it scrapes
WORDS = {"by", "on", "and", "unless", "offset", "sum", "avg", "max", "min", "rate", "increase",
         "histogram_quantile", "min_over_time"}


def need(program):
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")


def call(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False,
                          timeout=60 * harness.PATIENCE)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


# ---- what is asked for --------------------------------------------------------------------------


def rules():
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return group["rules"]


def board():
    return json.loads((FOLDER / "dashboard.json").read_text())


def panels():
    return [panel for panel in board()["panels"] if panel["type"] != "row"]


def fill(expression, window="5m"):
    """Variables of the dashboard replaced by what they may stand for."""
    for name, value in {"__rate_interval": window, "__range": window, "model_name": ".*",
                        "instance": ".*"}.items():
        expression = expression.replace(f"${name}", value)
    assert "$" not in expression, f"an unknown variable: {expression}"
    return expression


def asked():
    """(where, expression, labels that texts beside it show) of both files."""
    for rule in rules():
        shown = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
        yield rule["alert"], rule["expr"], set(shown)
    for panel in panels():
        for target in panel["targets"]:
            shown = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            yield panel["title"], fill(target["expr"]), set(shown)
    for variable in board()["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["definition"] == variable["query"]["query"]
            query, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"]
                                        ).groups()
            yield variable["name"], fill(query), {label}


# ---- what is there ------------------------------------------------------------------------------


@pytest.fixture(scope="module", name="server")
def fixture_server(tmp_path_factory):
    """With all families: of guesses, too. Some traffic has been there."""
    from conftest import shared
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(KEY + "\n")
    keys.chmod(0o600)
    for server in shared(tmp_path_factory, checkpoint.DEMO, "-tp", 2, "--speculative-config",
                         "ngram", "--api-key-file", keys):
        send(server)
        yield server


def with_key(server, method, path, body=None):
    return server.request(method, path, body, {"Authorization": f"Bearer {KEY}",
                                               "Content-Type": "application/json"})


def send(server, **fields):
    """Prompts that are found in the cache again, and whose words come again."""
    body = {"prompt": "Once upon a time, " * 12, "max_tokens": 60, "ignore_eos": True, **fields}
    reply = with_key(server, "POST", "/v1/completions", json.dumps(body))
    assert reply.status == 200, reply.body


def page(server):
    reply = with_key(server, "GET", "/metrics")
    assert reply.status == 200
    return harness.Metrics(reply.body.decode())


def known(metrics):
    """{name: {label: its values}}, with what Prometheus adds."""
    found = {"up": {label: set() for label in PROMETHEUS_LABELS}}
    for name, labels, _ in metrics.samples:
        family = found.setdefault(name, {label: set() for label in PROMETHEUS_LABELS})
        for label, value in labels.items():
            family.setdefault(label, set()).add(value)
    return found


# ---- whether it is ------------------------------------------------------------------------------

METRIC = re.compile(r"([A-Za-z_][\w:]*)(?:\{(.*?)\})?")
MATCHER = re.compile(r'(\w+)(=~|!=|!~|=)"(.*?)"(?:,|$)')
SUM = re.compile(r"\b(?:sum|avg|min|max)(?: by \(([^)]*)\))?\s*\(")


def names_of(labels):
    return {label.strip() for label in labels.split(",")}


def bracketed(text, begin):
    """What stands between the bracket before begin and the one that closes it."""
    depth, end = 1, begin
    while depth:
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return text[begin:end - 1]


def metrics_in(expression):
    """[(name, matchers)] of an expression."""
    text = re.sub(r"\b(by|on) \([^)]*\)|\[\w+\]|offset \w+", " ", expression)
    return [(name, matchers or "") for name, matchers in METRIC.findall(text)
            if name not in WORDS]


def check_metric(name, matchers, families):
    if name not in families:
        yield f"no metric {name}"
        return
    labels = families[name]
    parsed = MATCHER.findall(matchers)
    if "".join(f'{a}{b}"{c}",' for a, b, c in parsed).rstrip(",") != matchers:
        yield f"not understood: {{{matchers}}}"
    for label, operator, value in parsed:
        if label not in labels:
            yield f"{name} has no label {label}"
        elif label == "code":  # a status is there once it has been answered
            if not re.fullmatch(r"[1-5]\d\d(\|[1-5]\d\d)*", value):
                yield f"{value} is no status"
        elif operator == "=" and label not in PROMETHEUS_LABELS and value not in labels[label]:
            yield f"{name} never has {label}={value}"


def problems(expression, shown, families):
    """What an expression, and the labels that are shown with it, want and do not get."""
    found = metrics_in(expression)
    if not found:
        yield "no metric at all"
    for name, matchers in found:
        yield from check_metric(name, matchers, families)
    known_names = [name for name, _ in found if name in families]
    for labels in re.findall(r"\bon \(([^)]*)\)", expression):
        for name in known_names:
            yield from (f"{name} has no label {label}"
                        for label in names_of(labels) - set(families[name]))
    kept = None
    for match in SUM.finditer(expression):
        wanted = names_of(match[1]) if match[1] else set()
        kept = (kept or set()) | wanted
        for name, _ in metrics_in(bracketed(expression, match.end())):
            yield from (f"{name} has no label {label}"
                        for label in wanted - set(families.get(name, wanted)))
    if kept is None and known_names:
        kept = set(families[known_names[0]])
    yield from (f"{label} is shown and not kept" for label in shown - (kept or set()))


def test_every_metric_and_label_is_there(server):
    families = known(page(server))
    found = [f"{where}: {problem}" for where, expression, shown in asked()
             for problem in problems(" ".join(expression.split()), shown, families)]
    assert not found, "\n".join(found)
    used = {name for _, expression, _ in asked() for name, _ in metrics_in(expression)}
    assert len(used) > 30


@pytest.mark.parametrize("expression, shown, problem", [
    ("rate(vllm:no_such_total[5m])", "", "no metric vllm:no_such_total"),
    ("node_load1 > 3", "", "no metric node_load1"),
    ("vllm:time_to_first_token_seconds > 1", "", "no metric vllm:time_to_first_token_seconds"),
    ('tessera:rank_up{model_name=~".*"}', "", "tessera:rank_up has no label model_name"),
    ('vllm:request_success_total{finished_reason="fail"}', "",
     "vllm:request_success_total never has finished_reason=fail"),
    ('tessera:http_responses_total{code="5xx"}', "", "5xx is no status"),
    ("sum by (instance, op) (rate(tessera:step_seconds_count[5m]))", "",
     "tessera:step_seconds_count has no label op"),
    ("up == 1 unless on (job, node) tessera:rank_up", "", "up has no label node"),
    ("sum by (rank) (tessera:rank_up)", "instance", "instance is shown and not kept"),
    ("tessera:rank_up", "model_name", "model_name is shown and not kept"),
    ("sum(tessera:rank_up)", "rank", "rank is shown and not kept"),
    ("1 > 0", "", "no metric at all"),
])
def test_the_check_finds(server, expression, shown, problem):
    assert problem in list(problems(expression, set(shown.split()), known(page(server))))


def test_rules_say_what_to_do():
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert "$labels.instance" in rule["annotations"]["summary"], rule["alert"]
        assert len(rule["annotations"]["description"]) > 80, rule["alert"]


def test_options_that_texts_name_exist():
    """What an operator is told to change can be changed."""
    options = harness.run("serve", "--help").stdout
    for file in (*FOLDER.iterdir(), ROOT / "deploy/nginx.conf", ROOT / "deploy/kubernetes.yaml"):
        for name in set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", file.read_text())):
            if name not in ("from-file",):  # kubectl's
                assert re.search(rf"--{name}\b(?!-)", options), f"{file.name}: --{name}"


def test_panels_fit():
    dashboard = board()
    everything = dashboard["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    places = set()
    for panel in everything:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & places, panel["title"]
        places |= cells
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        names = [target["refId"] for target in panel["targets"]]
        assert names and len(set(names)) == len(names), panel["title"]
    assert [v["name"] for v in dashboard["templating"]["list"]] == ["datasource", "model_name",
                                                                    "instance"]


# ---- by Prometheus' own tools -------------------------------------------------------------------


def test_rules_are_valid(tmp_path):
    """Those of the file, and the expressions of the dashboard as if they were rules."""
    need("promtool")
    assert f"{len(rules())} rules found" in call("promtool", "check", "rules",
                                                 FOLDER / "alerts.yaml")
    drawn = [{"record": f"drawn:{i}", "expr": fill(target["expr"])} for i, target in
             enumerate(target for panel in panels() for target in panel["targets"])]
    file = tmp_path / "drawn.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "drawn", "rules": drawn}]}))
    assert f"{len(drawn)} rules found" in call("promtool", "check", "rules", file)


MODEL = 'model_name="m",engine="0",job="tessera",instance="i"'
SERVER = 'job="tessera",instance="i"'
FIRST, BETWEEN = ("vllm:time_to_first_token_seconds_bucket",
                  "vllm:inter_token_latency_seconds_bucket")
# What a server in good health says at every half minute, in promtool's notation.
HEALTHY = {
    f"up{{{SERVER}}}": "1+0x99",
    f"tessera:ready{{{MODEL}}}": "1+0x99",
    f'tessera:rank_up{{{SERVER},rank="0"}}': "1+0x99",
    f'tessera:rank_up{{{SERVER},rank="1"}}': "1+0x99",
    f"tessera:group_restarts_total{{{SERVER}}}": "0+0x99",
    f"tessera:step_seconds_count{{{SERVER}}}": "0+600x99",
    f"vllm:num_requests_running{{{MODEL}}}": "4+0x99",
    f"vllm:num_requests_waiting{{{MODEL}}}": "0+0x99",
    f'tessera:http_responses_total{{{MODEL},code="200"}}': "0+100x99",
    f'tessera:http_responses_total{{{MODEL},code="429"}}': "0+0x99",
    f'vllm:request_success_total{{{MODEL},finished_reason="stop"}}': "0+100x99",
    f'vllm:request_success_total{{{MODEL},finished_reason="error"}}': "0+0x99",
    f'{FIRST}{{{MODEL},le="10"}}': "0+100x99",
    f'{FIRST}{{{MODEL},le="20"}}': "0+100x99",
    f'{FIRST}{{{MODEL},le="+Inf"}}': "0+100x99",
    f'{BETWEEN}{{{MODEL},le="0.5"}}': "0+1000x99",
    f'{BETWEEN}{{{MODEL},le="0.75"}}': "0+1000x99",
    f'{BETWEEN}{{{MODEL},le="+Inf"}}': "0+1000x99",
    f"vllm:kv_cache_usage_perc{{{MODEL}}}": "0.5+0x99",
    f"vllm:num_preemptions_total{{{MODEL}}}": "0+0x99",
    f"vllm:prefix_cache_queries_total{{{MODEL}}}": "0+3000x99",
    f"vllm:prefix_cache_hits_total{{{MODEL}}}": "0+1500x99",
}
READY = f"tessera:ready{{{MODEL}}}"
RANKS = {name: "0+0x99" for name in HEALTHY if name.startswith("tessera:rank_up")}
NO_RANKS = {name: None for name in RANKS}
ERRORS = f'tessera:http_responses_total{{{MODEL},code="503"}}'
REFUSALS = f'tessera:http_responses_total{{{MODEL},code="429"}}'
FAILURES = f'vllm:request_success_total{{{MODEL},finished_reason="error"}}'
STEPS = f"tessera:step_seconds_count{{{SERVER}}}"
RUNNING, WAITING = (f"vllm:num_requests_{state}{{{MODEL}}}" for state in ("running", "waiting"))
PREEMPTED, USED = f"vllm:num_preemptions_total{{{MODEL}}}", f"vllm:kv_cache_usage_perc{{{MODEL}}}"
HITS = f"vllm:prefix_cache_hits_total{{{MODEL}}}"
DAYS = 1700  # minutes; a day and four hours
COLD = f"0+1500x1440 2160000+50x{DAYS - 1440}"
# (alert, what is other than in good health[, when it is looked at: minute 45])
CASES = [
    ("", {}),
    ("TesseraDown", {**dict.fromkeys(HEALTHY), f"up{{{SERVER}}}": "0+0x99"}),
    ("TesseraNotReady", {**RANKS, STEPS: None, RUNNING: "0+0x99", READY: "0+0x99"}),
    ("TesseraNotReady", {**NO_RANKS, STEPS: None, RUNNING: "0+0x99", ERRORS: "0+50x99",
                         READY: "0+0x99"}),
    ("TesseraNotReady", {READY: "0+0x99"}),  # it drains, and does not end
    ("", {**NO_RANKS, STEPS: None, RUNNING: "0+0x99", ERRORS: "0+50x99", READY: "0+0x99"}, 14),
    ("", {f"up{{{SERVER}}}": "1+0x78 0+0x20"}, 40),  # restarted
    ("TesseraRanksLost", {f"tessera:group_restarts_total{{{SERVER}}}": "0+0x40 1+0x59"}),
    ("TesseraStalled", {STEPS: "0+600x60 36000+0x39"}),
    ("TesseraStalled", {STEPS: "0+600x60 36000+0x39", RUNNING: "0+0x99", WAITING: "3+0x99"}),
    ("", {STEPS: "0+600x60 36000+0x39", RUNNING: "0+0x99"}),  # idle
    ("", {STEPS: "0+600x60 36000+0x39"}, 33),  # a step may be long
    ("TesseraQueueLong", {WAITING: "65+0x99"}),
    ("", {WAITING: "65+0x70 10+0x1 65+0x27"}),  # it went down between
    ("TesseraRefusing", {REFUSALS: "0+6x99"}),
    ("", {REFUSALS: "0+5x99"}),
    ("TesseraServerErrors", {ERRORS: "0+6x99"}),
    ("", {ERRORS: "0+5x99"}),
    ("TesseraRequestsFailed", {FAILURES: "0+0x70 1+0x29"}),
    ("TesseraFirstTokenSlow", {f'{FIRST}{{{MODEL},le="10"}}': "0+98x99"}),
    ("TesseraTokensSlow", {f'{BETWEEN}{{{MODEL},le="0.5"}}': "0+980x99"}),
    ("TesseraKvCacheFull", {USED: "0.97+0x99", PREEMPTED: "0+1x99"}),
    ("", {USED: "0.97+0x99"}),
    ("", {PREEMPTED: "0+1x99"}),
    ("TesseraPrefixCacheCold", {**{name: f"{value.split('x')[0]}x{DAYS}"
                                   for name, value in HEALTHY.items()}, HITS: COLD}, DAYS),
    ("", {REFUSALS: "0+0x60 0+6x39"}, 38),  # a burst
    ("", {ERRORS: "0+50x10 500+0x89", **{name: "0+0x10 1+0x89" for name in RANKS}}, 9),  # a start
]


def test_every_alert_has_a_case():
    assert {alert for alert, *_ in CASES if alert} == {rule["alert"] for rule in rules()}


def test_alerts_fire(tmp_path):
    need("promtool")
    tests = []
    for alert, changes, *minute in CASES:
        (minute,) = minute or [45]
        series = {name: value for name, value in {**HEALTHY, **changes}.items() if value}
        tests.append({
            "interval": "1m" if minute == DAYS else "30s",
            "input_series": [{"series": name, "values": value} for name, value in series.items()],
            "promql_expr_test": [{
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}]
                if alert else []}]})
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(FOLDER / "alerts.yaml")],
                                    "evaluation_interval": "1m", "tests": tests}))
    call("promtool", "test", "rules", file)


# ---- by Prometheus itself -----------------------------------------------------------------------


@contextlib.contextmanager
def watching(server, folder):
    """A Prometheus with the configuration of the README; yields a function that asks it."""
    text = (FOLDER / "README.md").read_text()
    config = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    (folder / "key").write_text(KEY)
    config["global"] = {"evaluation_interval": "500ms"}
    config["rule_files"] = [str(FOLDER / "alerts.yaml")]
    (scrape,) = config["scrape_configs"]
    assert scrape["job_name"] == "tessera"
    scrape["scrape_interval"] = "500ms"
    scrape["authorization"]["credentials_file"] = str(folder / "key")
    scrape["static_configs"] = [{"targets": [f"127.0.0.1:{server.port}"]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml",
             f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"],
            stdout=log, stderr=log)

    def ask(what, **parameters):
        url = f"http://127.0.0.1:{port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20 * harness.PATIENCE) as reply:
            return json.load(reply)["data"]

    def is_up():
        assert process.poll() is None, (folder / "log").read_text()[-4000:]
        with contextlib.suppress(OSError):
            return ask("query", query='up{job="tessera"} == 1')["result"]
        return None

    try:
        eventually(is_up, 20, "a scrape")
        yield ask
    finally:
        process.terminate()
        process.wait(20 * harness.PATIENCE)


@contextlib.contextmanager
def traffic(server):
    """Requests one after the other, while this lasts."""
    enough = threading.Event()

    def go_on():
        while not enough.is_set():
            send(server)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        going = pool.submit(go_on)
        try:
            yield
        finally:
            enough.set()
            going.result()


def is_drawn(ask, target):
    """Are there numbers, with the labels that the legend shows? The share of guesses that were
    right is none while nothing is guessed, which is the server's choice, by what steps cost."""
    shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    expression = fill(target["expr"], "30s")
    result = ask("query", query=expression)["result"]
    _, slash, below = expression.partition(" / ")
    nothing = bool(slash) and "draft_tokens" in below and all(
        float(sample["value"][1]) == 0 for sample in ask("query", query=below)["result"])
    return result and all(shown <= set(sample["metric"]) and
                          (sample["value"][1] != "NaN" or nothing) for sample in result)


def test_prometheus_draws_every_panel(server, tmp_path):
    need("prometheus")
    assert server.get("/metrics").status == 401  # it has to have the key
    with watching(server, tmp_path) as ask, traffic(server):
        for panel in panels():
            for target in panel["targets"]:
                eventually(lambda: is_drawn(ask, target), 10, f"{panel['title']}: {target}")

        def evaluated():
            (group,) = ask("rules")["groups"]
            return all(rule["health"] != "unknown" for rule in group["rules"]) and group["rules"]
        found = eventually(evaluated, 10, "rules evaluated")
        assert {rule["name"] for rule in found} == {rule["alert"] for rule in rules()}
        for rule in found:
            assert (rule["health"], rule["state"] == "firing") == ("ok", False), rule
