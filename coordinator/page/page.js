// The status page. Asks the coordinator again and again and draws the answers. Nothing in them is
// ever read as HTML: text is set as text, and the page's policy forbids anything else.
'use strict';

const PERIOD_MS = 2000;
const CURVE_POINTS = 600;
const SVG = 'http://www.w3.org/2000/svg';
const PARTS = [
  ['data_wait', 'data wait'], ['forward_backward', 'forward and backward'], ['local_reduce', 'local reduce'],
  ['push', 'push'], ['barrier_wait', 'barrier wait'], ['pull', 'pull'], ['update', 'update'], ['evaluate', 'evaluate']];
const KIND_OF_STATE = {
  RUNNING: 'busy', STARTING: 'busy', RECOVERING: 'warn', SUSPENDED: 'warn', SUCCEEDED: 'good', FINISHED: 'good',
  READY: 'good', FAILED: 'bad', LOST: 'bad', CANCELLED: 'warn', DRAINING: 'warn', DRAINED: 'warn', LEAVING: 'warn'};
const ENDED = ['SUCCEEDED', 'FAILED', 'CANCELLED'];

const byId = (id) => document.getElementById(id);

function element(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    e.setAttribute(name, value === true ? '' : value);
  }
  e.append(...children.flat().filter((c) => c !== null && c !== undefined).map((c) => c instanceof Node ? c : String(c)));
  return e;
}

function drawn(tag, attributes, text) {
  const e = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  if (text !== undefined) e.textContent = text;
  return e;
}

// ---- numbers as people read them ----

const known = (x) => x !== null && x !== undefined && Number.isFinite(x);
const number = (x, digits) => known(x) ? Number(x).toLocaleString('en', {maximumSignificantDigits: digits || 4}) : '–';
const whole = (x) => known(x) ? Math.round(x).toLocaleString('en') : '–';
const percent = (x) => known(x) ? `${Number((100 * x).toFixed(1))} %` : '–';

function bytes(x) {
  if (!known(x)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; x >= 1024 && i < units.length - 1; ++i) x /= 1024;
  return `${x >= 100 || i === 0 ? Math.round(x) : x.toFixed(1)} ${units[i]}`;
}

function duration(seconds) {
  if (!known(seconds) || seconds < 0) return '–';
  const s = Math.round(seconds);
  if (s < 60) return `${seconds < 10 ? seconds.toFixed(1) : s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}

const milliseconds = (seconds) => known(seconds) ? `${number(1000 * seconds, 3)} ms` : '–';
const secondsBetween = (from, to) => from ? ((to ? Date.parse(to) : now()) - Date.parse(from)) / 1000 : NaN;
const clock = (time) => time ? new Date(time).toLocaleTimeString('en-GB') : '';

let skewMs = 0;  // the coordinator's clock minus ours
const now = () => Date.now() + skewMs;

// ---- curves ----

function niceTicks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) ticks.push(Number(t.toPrecision(12)));
  return ticks;
}

// One card with curves over steps. series: [{name, points: [[step, value]]}]. The first is the main
// one.
class Chart {
  constructor(id, title, format, fixed) {
    this.format = format;
    this.fixed = fixed || {};  // {low, high} of the axis, if given
    this.now = element('span', {class: 'now'});
    this.svg = drawn('svg', {class: 'chart', role: 'img', tabindex: '0'});
    this.read = element('p', {class: 'read', 'aria-live': 'off'});
    this.title = title;
    this.root = element('figure', {class: 'card', id}, element('h2', {}, title, this.now), this.svg, this.read);
    this.svg.addEventListener('pointermove', (event) => this.point(event));
    this.svg.addEventListener('pointerleave', () => this.unpoint());
    this.svg.addEventListener('keydown', (event) => this.key(event));
    this.svg.addEventListener('blur', () => this.unpoint());
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.series = [];
  }

  update(series) {
    this.series = series;
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth || 360;
    const height = this.svg.clientHeight || 190;
    const main = this.series[0] ? this.series[0].points : [];
    const all = this.series.flatMap((s) => s.points);
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.svg.replaceChildren();
    this.root.dataset.points = JSON.stringify(main);
    this.now.textContent = main.length ? this.format(main[main.length - 1][1]) : '';
    if (!all.length) {
      this.svg.setAttribute('aria-label', `${this.title}: nothing was reported yet`);
      this.svg.append(drawn('text', {class: 'empty', x: width / 2, y: height / 2, 'text-anchor': 'middle'}, 'nothing was reported yet'));
      return;
    }
    let low = this.fixed.low ?? Math.min(...all.map((p) => p[1]));
    let high = this.fixed.high ?? Math.max(...all.map((p) => p[1]));
    if (high - low < 1e-12) [low, high] = [low - Math.max(Math.abs(low) * 0.1, 1e-6), high + Math.max(Math.abs(high) * 0.1, 1e-6)];
    const firstStep = Math.min(...all.map((p) => p[0]));
    const lastStep = Math.max(...all.map((p) => p[0]), firstStep + 1);
    const ticks = niceTicks(low, high, 5);
    const left = 10 + 6.5 * Math.max(...ticks.map((t) => this.format(t).length));
    const [top, right, bottom] = [8, width - 8, height - 22];
    this.scale = {
      left, right, top, bottom, firstStep, lastStep, low, high,
      x: (step) => left + (right - left) * (step - firstStep) / (lastStep - firstStep),
      y: (value) => bottom - (bottom - top) * (Math.min(Math.max(value, low), high) - low) / (high - low)};
    const {x, y} = this.scale;
    for (const name of ['left', 'right', 'top', 'bottom', 'firstStep', 'lastStep', 'low', 'high']) this.svg.dataset[name] = this.scale[name];
    for (const tick of ticks) {
      this.svg.append(drawn('line', {class: 'rule', x1: left, x2: right, y1: y(tick), y2: y(tick)}),
                      drawn('text', {class: 'axis', x: left - 6, y: y(tick) + 4, 'text-anchor': 'end'}, this.format(tick)));
    }
    const across = niceTicks(firstStep, lastStep, Math.max(2, Math.floor(width / 110))).filter((t) => Number.isInteger(t));
    for (const tick of across) {
      const at = x(tick);
      this.svg.append(drawn('text', {class: 'axis', x: at, y: height - 6, 'text-anchor': at > right - 20 ? 'end' : at < left + 12 ? 'start' : 'middle'}, whole(tick)));
    }
    this.series.forEach((s, i) => {
      if (!s.points.length) return;
      const path = s.points.map((p, k) => `${k ? 'L' : 'M'}${x(p[0]).toFixed(2)} ${y(p[1]).toFixed(2)}`).join('');
      this.svg.append(drawn('path', {class: `curve s${i}`, d: path}));
      const marks = s.marks ? s.points : s.points.slice(-1);
      for (const p of marks) this.svg.append(drawn('circle', {class: `f${i}`, cx: x(p[0]), cy: y(p[1]), r: 3}));
    });
    this.cursor = drawn('line', {class: 'cursor', y1: top, y2: bottom, visibility: 'hidden'});
    this.svg.append(this.cursor);
    const last = main[main.length - 1];
    this.svg.setAttribute('aria-label', main.length ?
      `${this.title} over steps ${main[0][0]} to ${last[0]}: from ${this.format(main[0][1])} to ${this.format(last[1])}. Arrow keys read the points.` : this.title);
    if (this.index !== undefined) this.show(Math.min(this.index, main.length - 1));
    else this.legend();
  }

  legend() {
    this.read.textContent = this.series.length > 1 && this.series[1].points.length ?
      `${this.series[0].name}: line · ${this.series[1].name}: dashed, ${this.format(this.series[1].points.at(-1)[1])}` : 'over steps';
  }

  show(index) {
    const main = this.series[0] ? this.series[0].points : [];
    if (!main[index]) return;
    this.index = index;
    const [step, value] = main[index];
    const at = this.scale.x(step);
    this.cursor.setAttribute('x1', at);
    this.cursor.setAttribute('x2', at);
    this.cursor.setAttribute('visibility', 'visible');
    const others = this.series.slice(1).map((s) => {
      const p = s.points.filter((q) => q[0] <= step).at(-1);
      return p ? ` · ${s.name} ${this.format(p[1])}` : '';
    });
    this.read.textContent = `step ${whole(step)}: ${this.format(value)}${others.join('')}`;
  }

  point(event) {
    const main = this.series[0] ? this.series[0].points : [];
    if (!main.length) return;
    const box = this.svg.getBoundingClientRect();
    const x = event.clientX - box.left;
    let best = 0;
    main.forEach((p, i) => { if (Math.abs(this.scale.x(p[0]) - x) < Math.abs(this.scale.x(main[best][0]) - x)) best = i; });
    this.show(best);
  }

  unpoint() {
    this.index = undefined;
    if (this.cursor) this.cursor.setAttribute('visibility', 'hidden');
    this.legend();
  }

  key(event) {
    const main = this.series[0] ? this.series[0].points : [];
    const step = {ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity}[event.key];
    if (step === undefined || !main.length) return;
    event.preventDefault();
    this.read.setAttribute('aria-live', 'polite');
    this.show(Math.max(0, Math.min(main.length - 1, (this.index ?? main.length - 1) + step)));
  }
}

// ---- parts of the page ----

const chip = (state) => element('span', {class: `chip ${KIND_OF_STATE[state] || ''}`}, state);

function progressBar(progress, state) {
  const ratio = progress.total_steps ? progress.step / progress.total_steps : 0;
  const fill = element('div');
  fill.style.width = `${100 * ratio}%`;
  const kind = state === 'SUCCEEDED' ? 'good' : state === 'FAILED' ? 'bad' : '';
  return element('div', {class: `bar ${kind}`, role: 'progressbar', 'aria-label': 'progress', 'aria-valuemin': 0, 'aria-valuemax': 100,
    'aria-valuenow': Math.round(100 * ratio)}, fill);
}

function table(caption, head, rows, id) {
  return element('table', {id}, element('caption', {}, caption),
    element('thead', {}, element('tr', {}, head.map((h) => element('th', {scope: 'col'}, h)))),
    element('tbody', {}, rows.map((row) => element('tr', {}, row.map((cell, i) =>
      element('td', {'data-label': head[i], class: cell === '–' ? 'none' : null}, element('div', {}, cell)))))));
}

const fact = (name, value, small) => element('div', {}, element('dt', {}, name), element('dd', {}, value, small ? element('small', {}, ` ${small}`) : null));

// "NVIDIA H200" with its used memory; for a CPU the used memory of its host.
function devicesOf(member, node) {
  if (!node) return ['–', '–'];
  const places = member && member.devices ? member.devices : node.devices.map((_, i) => i);
  const names = places.map((i) => node.devices[i] || '?').join(', ') || '–';
  const usage = node.usage || {};
  const cards = places.map((i) => (usage.devices || [])[i]).filter((d) => d && known(d.memory_total_bytes));
  if (cards.length) {
    return [names, cards.map((d) => `${bytes(d.memory_used_bytes)} of ${bytes(d.memory_total_bytes)}` +
      (known(d.utilization_ratio) ? `, ${percent(d.utilization_ratio)} busy` : '')).join('; ')];
  }
  if (known(usage.memory_used_bytes)) return [names, `host: ${bytes(usage.memory_used_bytes)} of ${bytes(usage.memory_total_bytes)}`];
  return [names, '–'];
}

// ---- all jobs ----

const overview = {
  path: () => '/api/overview',
  show(data) {
    const jobs = data.jobs.map((job) => [
      [element('a', {class: 'name', href: `#/job/${encodeURIComponent(job.job_id)}`}, job.job_id), element('span', {class: 'sub'}, job.message || '')],
      [chip(job.state), job.reason ? element('span', {class: 'sub'}, job.reason) : null],
      job.progress.total_steps ? [`${whole(job.progress.step)} of ${whole(job.progress.total_steps)}`, progressBar(job.progress, job.state)] : '–',
      number(job.progress.loss), percent(job.progress.accuracy), whole(job.progress.samples_per_second),
      ENDED.includes(job.state) ? '–' : duration(job.progress.eta_seconds), duration(secondsBetween(job.submitted_at)) + ' ago']);
    const nodes = data.nodes.map((node) => [
      element('span', {class: 'name'}, node.name), node.role === 'PARAM_STORE' ? 'shard' : 'worker', chip(node.state),
      node.devices.length ? `${node.busy_devices} of ${node.devices.length}` : '–', ...devicesOf(null, node), node.job_ids.join(', ') || '–']);
    const focused = document.activeElement && document.activeElement.getAttribute('href');
    byId('main').replaceChildren(
      element('h1', {class: 'section'}, 'Jobs'),
      element('section', {class: 'card section'}, jobs.length ?
        table('Newest first', ['Job', 'State', 'Step', 'Loss', 'Accuracy', 'Samples/s', 'ETA', 'Submitted'], jobs, 'jobs') :
        element('p', {class: 'faint'}, 'No jobs yet. ', element('code', {}, 'capstan submit job.yaml'), ' starts one.')),
      element('section', {class: 'card section'}, nodes.length ?
        table('Nodes', ['Node', 'Role', 'State', 'Slots used', 'Devices', 'Memory', 'Jobs'], nodes, 'nodes') :
        element('p', {class: 'faint'}, 'No nodes have registered.')));
    const link = [...byId('main').querySelectorAll('a')].find((a) => a.getAttribute('href') === focused);
    if (link) link.focus({preventScroll: true});  // keeps the keyboard's focus after the redraw
    document.title = 'Capstan';
  },
};

// ---- one job ----

class JobView {
  constructor(id) {
    this.id = id;
    this.charts = {
      loss: new Chart('loss', 'Loss', (x) => number(x, 4)),
      accuracy: new Chart('accuracy', 'Accuracy', (x) => percent(x)),
      speed: new Chart('speed', 'Samples per second', (x) => number(x, 3), {low: 0})};
    this.head = element('section', {class: 'card section', id: 'head'});
    this.step = element('section', {class: 'card section', id: 'breakdown'});
    this.members = element('div', {});
    this.events = element('section', {class: 'card', id: 'events'});
    this.log = element('section', {class: 'card', id: 'log'});
    byId('main').replaceChildren(
      this.head, element('div', {class: 'grid'}, Object.values(this.charts).map((c) => c.root)), this.step, this.members,
      element('div', {class: 'grid two'}, this.events, this.log));
  }

  path() { return `/api/job?id=${encodeURIComponent(this.id)}&points=${CURVE_POINTS}`; }

  show(data) {
    this.showHead(data.job, data);
    const metrics = data.metrics;
    const curve = (name) => metrics.step.map((step, i) => [step, metrics[name][i]]).filter((p) => known(p[1]));
    const perEpoch = data.steps_per_epoch || 0;
    const validation = data.job.epochs.filter((e) => known(e.validation_accuracy)).map((e) =>
      [Math.min(e.epoch * perEpoch, data.job.progress.total_steps), e.validation_accuracy]);
    const validationLoss = data.job.epochs.filter((e) => known(e.validation_loss)).map((e) =>
      [Math.min(e.epoch * perEpoch, data.job.progress.total_steps), e.validation_loss]);
    this.charts.loss.update([{name: 'training', points: curve('loss')}, {name: 'validation', points: validationLoss, marks: true}]);
    this.charts.accuracy.update([{name: 'training', points: curve('accuracy')}, {name: 'validation', points: validation, marks: true}]);
    this.charts.accuracy.root.hidden = data.job.numeric_targets;  // they have no accuracy
    this.charts.speed.update([{name: 'samples/s', points: curve('samples_per_second')}]);
    this.showBreakdown(data.breakdown);
    this.showMembers(data.job, new Map(data.nodes.map((n) => [n.name, n])));
    this.showEvents(data.job);
    this.showLog(data.log, data.log_is_shown);
    const p = data.job.progress;
    document.title = `${p.total_steps ? `${Math.floor(100 * p.step / p.total_steps)} % ` : ''}${data.job.state} ${data.job.job_id} – Capstan`;
  }

  showHead(job, data) {
    const p = job.progress;
    const ended = ENDED.includes(job.state);
    const took = duration(secondsBetween(job.started_at, job.finished_at));
    const evaluated = job.epochs.findLast((e) => known(e.validation_loss));
    this.head.replaceChildren(...[
      element('p', {class: 'crumb'}, element('a', {href: '#/'}, '← All jobs')),
      element('div', {class: 'title'}, element('h1', {}, job.job_id), chip(job.state), job.reason ? element('span', {class: 'faint'}, job.reason) : null),
      element('p', {class: 'crumb faint'}, data.summary),
      job.message ? element('p', {class: `message ${job.state === 'FAILED' ? 'bad' : ''}`}, job.message) : null,
      element('dl', {class: 'facts'},
        fact('Step', p.total_steps ? whole(p.step) : '–', p.total_steps ? `of ${whole(p.total_steps)}` : ''),
        fact('Epoch', p.epoch || '–'),
        fact('ETA', ended ? '–' : duration(p.eta_seconds)), fact(ended ? 'Took' : 'Running for', took),
        fact('Loss', number(p.loss), 'training'),
        job.numeric_targets ?
          fact('Loss', number(evaluated && evaluated.validation_loss), evaluated ? `test set, epoch ${evaluated.epoch}` : 'test set') :
          fact('Accuracy', percent(p.accuracy), 'training'),
        fact('Samples/s', whole(p.samples_per_second)),
        fact('Restarts', job.restarts, `of ${job.max_restarts}`),
        p.skipped_steps ? fact('Skipped steps', whole(p.skipped_steps), 'not finite') : null,
        fact('Checkpoint', job.checkpoints.length ? `step ${whole(job.checkpoints[0].step)}` : '–',
          job.checkpoints.length ? `${bytes(job.checkpoints[0].size_bytes)}` : '')),
      progressBar(p, job.state)].filter((e) => e));
  }

  showBreakdown(b) {
    const children = [element('h2', {}, b ? `One step: ${milliseconds(b.total)}, mean of the last ${whole(b.steps)} of all workers` : 'One step')];
    if (b) {
      const bar = element('div', {class: 'stack', role: 'img', 'aria-label': PARTS.map(([k, n]) => `${n} ${milliseconds(b[k])}`).join(', ')});
      const legend = element('ul', {class: 'legend'});
      PARTS.forEach(([key, name], i) => {
        const share = b.total > 0 ? b[key] / b.total : 0;
        if (share < 0.0005) return;
        const part = element('div', {class: `k${i}`, title: `${name} ${milliseconds(b[key])}`});
        part.style.flexGrow = share;
        bar.append(part);
        legend.append(element('li', {class: `k${i}`}, `${name} ${milliseconds(b[key])} (${percent(share)})`));
      });
      children.push(bar, legend);
    } else {
      children.push(element('p', {class: 'faint'}, 'No worker has reported yet.'));
    }
    this.step.replaceChildren(...children);
  }

  showMembers(job, nodes) {
    const place = (m) => [element('span', {class: 'name'}, m.node), m.host && m.host !== m.node ? element('span', {class: 'sub'}, m.host) : null];
    const state = (m) => [chip(m.state), m.message ? element('span', {class: 'sub'}, m.message) : null];
    const workers = job.workers.map((m) => [[element('span', {class: 'name'}, `w${m.index}`)], place(m), state(m), whole(m.step), ...devicesOf(m, nodes.get(m.node))]);
    const shards = job.shards.map((m) => {
      const load = m.load || {};
      const chunks = m.route ? `${whole(m.route.chunk_count)} from ${whole(m.route.first_chunk)}` : '–';
      return [[element('span', {class: 'name'}, `s${m.index}`)], place(m), state(m), whole(m.step), chunks,
        load.resident_bytes ? bytes(load.resident_bytes) : '–',
        known(load.bytes_in_per_second) ? `${bytes(load.bytes_in_per_second)}/s in, ${bytes(load.bytes_out_per_second)}/s out` : '–'];
    });
    const sections = [element('section', {class: 'card section'}, table('Workers', ['Rank', 'Node', 'State', 'Step', 'Devices', 'Memory'], workers, 'workers'))];
    if (shards.length) {
      sections.push(element('section', {class: 'card section'}, table('Shards', ['Shard', 'Node', 'State', 'Version', 'Chunks', 'Memory', 'Traffic'], shards, 'shards')));
    }
    this.members.replaceChildren(...sections);
  }

  showEvents(job) {
    const items = job.events.slice().reverse().map((e) => element('li', {},
      element('time', {datetime: e.time, title: e.time}, `+${duration(secondsBetween(job.submitted_at, e.time))}`),
      element('span', {}, element('strong', {}, e.type), e.message ? ` ${e.message}` : '')));
    this.events.replaceChildren(element('h2', {}, 'Events, newest first'), element('ul', {class: 'events', tabindex: '0', 'aria-label': 'events'}, items));
  }

  showLog(lines, shown) {
    if (!shown) {
      this.log.replaceChildren(element('h2', {}, 'Last log lines'), element('p', {class: 'faint'}, 'They are for the owner of the job and for an admin.'));
      return;
    }
    const old = this.log.querySelector('.log');
    const follow = !old || old.scrollTop + old.clientHeight >= old.scrollHeight - 30;
    const box = element('pre', {class: 'log', tabindex: '0', 'aria-label': 'last log lines'},
      lines.map((l) => element('span', {class: l.level}, element('span', {class: 'who'}, `${clock(l.time)} ${l.who.padEnd(3)} `),
        ['warning', 'error'].includes(l.level) ? `${l.level}: ` : '', `${l.text}\n`)));
    const top = old ? old.scrollTop : 0;
    this.log.replaceChildren(element('h2', {}, 'Last log lines'), box);
    box.scrollTop = follow ? box.scrollHeight : top;
  }
}

// ---- asking ----

let view = overview;
let round = 0;
let lastAnswer = null;

function showCluster(cluster, open) {
  byId('cluster').textContent =
    `${cluster.running_jobs} running, ${cluster.pending_jobs} pending · slots ${cluster.busy_slots}/${cluster.slots} · up ${duration(cluster.uptime_seconds)} · ${cluster.version}`;
  byId('logout').hidden = open;
}

function notice(text) {
  byId('notice').hidden = !text;
  if (byId('notice').textContent !== text) byId('notice').textContent = text;
}

async function ask() {
  const mine = ++round;
  const asked = view;
  try {
    const answer = await fetch(asked.path(), {cache: 'no-store', signal: AbortSignal.timeout(10000)});
    if (answer.status === 401) return location.reload();  // the token is not valid any more: shows the form
    const data = await answer.json();
    if (mine !== round) return;
    if (answer.status === 404) {
      notice('');
      byId('main').replaceChildren(element('h1', {class: 'section'}, 'There is no such job (any more)'), element('a', {href: '#/'}, '← All jobs'));
      return;
    }
    if (!answer.ok) throw new Error(data.error);
    skewMs = Date.parse(data.time) - Date.now();
    lastAnswer = new Date();
    notice('');
    showCluster(data.cluster, data.open);
    asked.show(data);
    document.documentElement.dataset.round = mine;
  } catch (error) {
    if (mine !== round) return;
    const since = lastAnswer ? ` What you see is of ${lastAnswer.toLocaleTimeString('en-GB')}.` : '';
    notice(`The coordinator does not answer (${error.message}).${since} Trying again …`);
  } finally {
    if (mine === round) setTimeout(() => { if (mine === round && !document.hidden) ask(); }, PERIOD_MS);
  }
}

function route() {
  const match = location.hash.match(/^#\/job\/([^/]+)$/);
  view = match ? new JobView(decodeURIComponent(match[1])) : overview;
  if (!match) byId('main').replaceChildren(element('p', {class: 'faint'}, 'Loading …'));
  ask();
}

addEventListener('hashchange', () => { route(); byId('main').focus({preventScroll: true}); scrollTo(0, 0); });
document.addEventListener('visibilitychange', () => { if (!document.hidden) ask(); });
route();
