#include "tests/support/fake_cuda/streams.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <utility>

#include "services/clock/clock.h"
#include "services/sync/mutex.h"

namespace capstan::fake_cuda {
namespace {

// Long enough for a sanitizer on a busy machine.
constexpr absl::Duration kHostWaits = absl::Seconds(120);

// Not std::atomic::wait, because what it shares between threads would be edges that no card has.
void FutexWait(std::atomic<uint32_t>& word, uint32_t value) {
  // A time limit replaces any order between the word and the event.
  const timespec millisecond = {0, 1000000};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &millisecond, nullptr, 0);
}
void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

// "1:50": the 50th piece of work of the newest stream of device 1.
struct Trap {
  int device = -1;  // guarded by Calls()
  int64_t work = 0;
  std::atomic<int64_t> left = 0;
  std::atomic<cudaStream_t> stream = nullptr;
};
Trap fault, hang;
std::array<std::atomic<bool>, kMostDevices> failed = {};
thread_local cudaStream_t running = nullptr;  // the stream whose thread this is
thread_local int captures = 0;
thread_local cudaError_t last_error = cudaSuccess;

// Every call that uses streams, events or captures holds it. Streams never do.
Mutex& Calls() {
  static Mutex& mu = *new Mutex;
  return mu;
}
std::vector<cudaStream_t>& Streams() {
  static auto& streams = *new std::vector<cudaStream_t>;
  return streams;
}
// Streams of an earlier world. They are kept, because callers may still ask to destroy them.
std::vector<cudaStream_t>& LeftBehind() {
  static auto& streams = *new std::vector<cudaStream_t>;
  return streams;
}
bool IsIn(const std::vector<cudaStream_t>& streams, cudaStream_t stream) {
  return std::find(streams.begin(), streams.end(), stream) != streams.end();
}
bool Lives(cudaStream_t stream) { return IsIn(Streams(), stream); }
cudaError_t NoStream(cudaStream_t stream, const std::string& what) {
  return Fail(cudaErrorInvalidResourceHandle,
              IsIn(LeftBehind(), stream) ? "" : "no such stream " + what);
}

// Requires Calls().
void ReadWorldLocked() {
  static auto& known = *new std::string;
  const std::string words =
      Setting("fault", "") + " " + Setting("hang", "") + " " + Setting("nccl", "");
  if (words == known) return;
  known = words;
  for (std::atomic<bool>& device : failed) device = false;
  for (const cudaStream_t stream : Streams()) stream->LeaveBehind();
  for (const cudaStream_t stream : Streams()) stream->End();
  LeftBehind().insert(LeftBehind().end(), Streams().begin(), Streams().end());
  Streams().clear();
  for (const auto& [trap, name] :
       {std::make_pair(&fault, "fault"), std::make_pair(&hang, "hang")}) {
    long long work = 0;
    trap->device = -1;
    std::sscanf(Setting(name, "").c_str(), "%d:%lld", &trap->device, &work);
    trap->work = work;
    trap->stream = nullptr;
  }
}

// Requires Calls(). The newest stream of its device takes over the traps.
void SetTraps(cudaStream_t newest) {
  for (Trap* const trap : {&fault, &hang}) {
    if (trap->device != newest->device) continue;
    trap->left = trap->work;
    trap->stream = newest;
  }
}

// Requires Calls().
cudaError_t EnqueueLocked(cudaStream_t stream, Work work) {
  if (stream == nullptr) {
    return Fail(cudaErrorInvalidResourceHandle, "the default stream waits for all others");
  }
  if (!Lives(stream)) return NoStream(stream, "for work");
  if (StickyError(stream->device) != cudaSuccess) return Fail(StickyError(stream->device), "");
  work = [work = std::move(work)] {
    if (running->Healthy()) work();
  };
  if (stream->capture == nullptr) {
    stream->Push(std::move(work));
    return cudaSuccess;
  }
  Nodes& nodes = stream->capture->nodes;
  nodes.push_back({std::move(work), stream->last});
  stream->last = {nodes.size() - 1};
  return cudaSuccess;
}

// Runs the nodes in an order that their edges allow, chosen at random.
void RunNodes(const Nodes& nodes, std::minstd_rand& random) {
  std::vector<size_t> missing(nodes.size()), ready;
  std::vector<std::vector<size_t>> behind(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    missing[i] = nodes[i].after.size();
    for (const size_t before : nodes[i].after) behind[before].push_back(i);
    if (missing[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const size_t node = ready.back();
    ready.pop_back();
    nodes[node].work();
    for (const size_t next : behind[node]) {
      if (--missing[next] == 0) ready.push_back(next);
    }
  }
}

// Whether every node of the capture, except `last`, is followed by another.
bool Joined(const Capture& capture, const std::vector<size_t>& last) {
  std::vector<bool> followed(capture.nodes.size(), false);
  for (const Node& node : capture.nodes) {
    for (const size_t before : node.after) followed[before] = true;
  }
  for (const size_t node : last) followed[node] = true;
  return std::all_of(followed.begin(), followed.end(), [](bool f) { return f; });
}

}  // namespace

void Ticket::Finish() {
  time_ = MonotonicNow();
  done_.store(1, std::memory_order_release);
  FutexWake(done_);
}

bool Ticket::Wait(absl::Duration limit) {
  const absl::Duration begin = MonotonicNow();
  while (!done()) {
    if (MonotonicNow() - begin > limit) return false;
    FutexWait(done_, 0);
  }
  return true;
}

Ticket* NewTicket() {
  static Mutex& mu = *new Mutex;
  static auto& all = *new std::vector<std::unique_ptr<Ticket>>;
  MutexLock lock(mu);
  return all.emplace_back(std::make_unique<Ticket>()).get();
}

void HostWait(Ticket* ticket) {
  if (!ticket->Wait(kHostWaits)) {
    Complain("the host waits for a device that hangs: on a card it would for ever");
    std::abort();
  }
}

bool IsLeftBehind() { return running != nullptr && running->is_left_behind(); }

bool ThreadCaptures() { return captures > 0; }
cudaError_t StickyError(int device) {
  return device >= 0 && failed[static_cast<size_t>(device)] ? cudaErrorIllegalAddress : cudaSuccess;
}

void ReadWorld() {
  MutexLock lock(Calls());
  ReadWorldLocked();
}

cudaError_t Fail(cudaError_t error, const std::string& why) {
  if (!why.empty()) Complain(why);
  last_error = error;
  return error;
}

cudaError_t Enqueue(cudaStream_t stream, Work work) {
  MutexLock lock(Calls());
  return EnqueueLocked(stream, std::move(work));
}

int DeviceOf(cudaStream_t stream) {
  MutexLock lock(Calls());
  return Lives(stream) ? stream->device : -1;
}

void WaitForAll() {
  std::vector<Ticket*> tickets;
  {
    MutexLock lock(Calls());
    for (const cudaStream_t stream : Streams()) {
      Ticket* const ticket = tickets.emplace_back(NewTicket());
      stream->Push([ticket] { ticket->Finish(); });
    }
  }
  for (Ticket* const ticket : tickets) HostWait(ticket);
}

}  // namespace capstan::fake_cuda

// ---- streams ----

CUstream_st::CUstream_st(int on_device)
    : device(on_device),
      head_(new Item),
      tail_(head_),
      late_(capstan::fake_cuda::Setting("late", "1") != "0") {
  static std::atomic<unsigned> streams = 0;
  const std::string seed = capstan::fake_cuda::Setting("seed", "1");
  random_.seed(static_cast<unsigned>(std::stoul(seed)) * 1000 + ++streams);
  thread_ = std::thread([this] { Run(); });
}

CUstream_st::~CUstream_st() {
  End();
  delete head_;
}

void CUstream_st::End() {
  Push(nullptr);
  thread_.join();
}

void CUstream_st::Push(capstan::fake_cuda::Work work) {
  auto* const item = new Item;
  item->work = std::move(work);
  tail_->next.store(item, std::memory_order_release);
  tail_ = item;
  pushed_.fetch_add(1, std::memory_order_relaxed);
  capstan::fake_cuda::FutexWake(pushed_);
}

void CUstream_st::Run() {
  capstan::fake_cuda::running = this;
  while (true) {
    const uint32_t seen = pushed_.load(std::memory_order_relaxed);
    Item* const next = head_->next.load(std::memory_order_acquire);
    if (next == nullptr) {
      capstan::fake_cuda::FutexWait(pushed_, seen);
      continue;
    }
    delete std::exchange(head_, next);
    if (!head_->work) return;
    BeLate();
    head_->work();
    head_->work = nullptr;
  }
}

void CUstream_st::BeLate() {
  if (!late_ || random_() % 6 != 0) return;
  const timespec delay = {0, static_cast<long>(random_() % 150000)};
  nanosleep(&delay, nullptr);
}

bool CUstream_st::Healthy() {
  using capstan::fake_cuda::fault;
  using capstan::fake_cuda::hang;
  if (fault.stream == this && --fault.left == 0) {
    capstan::fake_cuda::failed[static_cast<size_t>(device)] = true;
  }
  if (hang.stream == this && --hang.left == 0) {
    const timespec millisecond = {0, 1000000};
    while (!left_behind_) nanosleep(&millisecond, nullptr);
  }
  return !left_behind_ && capstan::fake_cuda::StickyError(device) == cudaSuccess;
}

namespace capstan::fake_cuda {
namespace {

cudaError_t MakeStream(cudaStream_t* stream) {
  int device = 0;
  cudaGetDevice(&device);
  MutexLock lock(Calls());
  ReadWorldLocked();
  *stream = new CUstream_st(device);
  SetTraps(*stream);
  Streams().push_back(*stream);
  return cudaSuccess;
}

cudaError_t DestroyStream(cudaStream_t stream) {
  {
    MutexLock lock(Calls());
    if (!Lives(stream)) return NoStream(stream, "to destroy");
    if (stream->capture != nullptr) {
      return Fail(cudaErrorStreamCaptureUnsupported, "a stream that captures is destroyed");
    }
    std::erase(Streams(), stream);
  }
  delete stream;
  return cudaSuccess;
}

cudaError_t Synchronize(cudaStream_t stream) {
  if (ThreadCaptures()) {
    return Fail(cudaErrorStreamCaptureUnsupported, "a thread that captures may not wait");
  }
  Ticket* const ticket = NewTicket();
  int device = 0;
  {
    MutexLock lock(Calls());
    if (!Lives(stream)) return NoStream(stream, "to wait for");
    device = stream->device;
    stream->Push([ticket] { ticket->Finish(); });
  }
  HostWait(ticket);
  return StickyError(device);
}

// ---- events ----

cudaError_t Record(cudaEvent_t event, cudaStream_t stream) {
  MutexLock lock(Calls());
  if (event == nullptr || !Lives(stream)) {
    return Fail(cudaErrorInvalidResourceHandle, "an event is recorded on no stream");
  }
  if (event->device != stream->device) {
    return Fail(cudaErrorInvalidResourceHandle,
                "an event is recorded on another device than its own");
  }
  event->capture = stream->capture;
  event->after = stream->last;
  if (event->capture != nullptr) return cudaSuccess;
  Ticket* const ticket = NewTicket();
  event->ticket = ticket;
  stream->Push([ticket] { ticket->Finish(); });
  return cudaSuccess;
}

cudaError_t StreamWait(cudaStream_t stream, cudaEvent_t event) {
  MutexLock lock(Calls());
  if (event == nullptr || !Lives(stream)) {
    return Fail(cudaErrorInvalidResourceHandle, "no stream, or no event to wait for");
  }
  if (event->capture != nullptr) {
    // Its capture may have ended; otherwise the stream joins it here.
    Capture& capture = *event->capture;
    if (std::find(capture.streams.begin(), capture.streams.end(), capture.origin) ==
        capture.streams.end()) {
      return Fail(cudaErrorCapturedEvent, "an event of a capture that has ended is waited for");
    }
    if (stream->capture == nullptr) {
      stream->capture = event->capture;
      stream->last.clear();
      capture.streams.push_back(stream);
    } else if (stream->capture != event->capture) {
      capture.broken = cudaErrorStreamCaptureMerge;
      return Fail(cudaErrorStreamCaptureMerge, "two captures wait for each other");
    }
    for (const size_t node : event->after) {
      if (std::find(stream->last.begin(), stream->last.end(), node) == stream->last.end()) {
        stream->last.push_back(node);
      }
    }
    return cudaSuccess;
  }
  if (stream->capture != nullptr) {
    stream->capture->broken = cudaErrorStreamCaptureIsolation;
    return Fail(cudaErrorStreamCaptureIsolation, "a capture waits for an event from outside of it");
  }
  Ticket* const ticket = event->ticket;
  if (ticket == nullptr) return cudaSuccess;  // never recorded, so it is done
  stream->Push([ticket] { ticket->Wait(absl::InfiniteDuration()); });
  return cudaSuccess;
}

// The ticket of an event that the host may query. Null: it is done.
cudaError_t TicketOf(cudaEvent_t event, Ticket** ticket) {
  if (ThreadCaptures()) {
    return Fail(cudaErrorStreamCaptureUnsupported, "a thread that captures asks for an event");
  }
  MutexLock lock(Calls());
  if (event == nullptr) return Fail(cudaErrorInvalidResourceHandle, "no event");
  if (event->capture != nullptr) {
    return Fail(cudaErrorCapturedEvent, "an event of a capture is asked for by the host");
  }
  *ticket = event->ticket;
  return cudaSuccess;
}

// ---- captures ----

cudaError_t BeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  MutexLock lock(Calls());
  if (!Lives(stream)) return Fail(cudaErrorInvalidResourceHandle, "no stream to capture");
  if (stream->capture != nullptr) {
    return Fail(cudaErrorIllegalState, "the stream captures already");
  }
  if (mode != cudaStreamCaptureModeThreadLocal) {
    return Fail(cudaErrorNotSupported, "captures are of the thread here");
  }
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->streams = {stream};
  stream->last.clear();
  ++captures;
  return cudaSuccess;
}

cudaError_t EndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  MutexLock lock(Calls());
  if (!Lives(stream) || stream->capture == nullptr || stream->capture->origin != stream) {
    return Fail(cudaErrorIllegalState, "the stream began no capture");
  }
  const std::shared_ptr<Capture> capture = stream->capture;
  const bool joined = Joined(*capture, stream->last);
  for (const cudaStream_t other : capture->streams) {
    other->capture = nullptr;
    other->last.clear();
  }
  capture->streams.clear();
  --captures;
  if (capture->broken != cudaSuccess) return Fail(cudaErrorStreamCaptureInvalidated, "");
  if (!joined) {
    return Fail(cudaErrorStreamCaptureUnjoined,
                "a capture ends, and another stream's part of it is not joined");
  }
  *graph = new CUgraph_st{std::make_shared<const Nodes>(std::move(capture->nodes))};
  return cudaSuccess;
}

cudaError_t LaunchGraph(cudaGraphExec_t exec, cudaStream_t stream) {
  MutexLock lock(Calls());
  if (exec == nullptr || !Lives(stream)) {
    return Fail(cudaErrorInvalidResourceHandle, "no graph, or no stream for it");
  }
  if (stream->capture != nullptr) {
    return Fail(cudaErrorStreamCaptureUnsupported, "a graph in a graph: nothing here does that");
  }
  stream->Push([nodes = exec->nodes] { RunNodes(*nodes, running->random()); });
  return cudaSuccess;
}

}  // namespace
}  // namespace capstan::fake_cuda

// ---- the calls ----

namespace fake = capstan::fake_cuda;

// The failure of the calling thread's current device.
static cudaError_t CurrentSticky() {
  int device = 0;
  cudaGetDevice(&device);
  return fake::StickyError(device);
}

// Nothing works on a failed device.
#define FAKE_CUDA_RETURN_STICKY                               \
  do {                                                        \
    const cudaError_t sticky = CurrentSticky();               \
    if (sticky != cudaSuccess) return fake::Fail(sticky, ""); \
  } while (false)

cudaError_t cudaGetLastError() {
  const cudaError_t error = std::exchange(fake::last_error, cudaSuccess);
  return CurrentSticky() != cudaSuccess ? CurrentSticky() : error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  FAKE_CUDA_RETURN_STICKY;
  if (flags != cudaStreamNonBlocking) {
    return fake::Fail(cudaErrorInvalidValue, "a stream that waits for the default one");
  }
  return fake::MakeStream(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return fake::DestroyStream(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return fake::Synchronize(stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  FAKE_CUDA_RETURN_STICKY;
  return fake::StreamWait(stream, event);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  FAKE_CUDA_RETURN_STICKY;
  *event = new CUevent_st;
  (*event)->timing = (flags & cudaEventDisableTiming) == 0;
  return cudaGetDevice(&(*event)->device);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  FAKE_CUDA_RETURN_STICKY;
  return fake::Record(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  fake::Ticket* ticket = nullptr;
  const cudaError_t error = fake::TicketOf(event, &ticket);
  if (error != cudaSuccess) return error;
  if (fake::StickyError(event->device) != cudaSuccess) {
    return fake::Fail(fake::StickyError(event->device), "");
  }
  if (ticket == nullptr || ticket->done()) return cudaSuccess;
  return fake::Fail(cudaErrorNotReady, "");
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  fake::Ticket* ticket = nullptr;
  const cudaError_t error = fake::TicketOf(event, &ticket);
  if (error != cudaSuccess || ticket == nullptr) return error;
  fake::HostWait(ticket);
  return fake::StickyError(event->device);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  fake::Ticket *from = nullptr, *to = nullptr;
  for (const auto& [event, ticket] : {std::make_pair(begin, &from), std::make_pair(end, &to)}) {
    const cudaError_t error = fake::TicketOf(event, ticket);
    if (error != cudaSuccess) return error;
    if (*ticket == nullptr || !event->timing) {
      return fake::Fail(cudaErrorInvalidResourceHandle, "an event without a time");
    }
    if (!(*ticket)->done()) return fake::Fail(cudaErrorNotReady, "");
  }
  *milliseconds = static_cast<float>(absl::ToDoubleMilliseconds(to->time() - from->time()));
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  FAKE_CUDA_RETURN_STICKY;
  return fake::BeginCapture(stream, mode);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return fake::EndCapture(stream, graph);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  FAKE_CUDA_RETURN_STICKY;
  if (graph == nullptr) return fake::Fail(cudaErrorInvalidValue, "no graph");
  *exec = new CUgraphExec_st{graph->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  FAKE_CUDA_RETURN_STICKY;
  return fake::LaunchGraph(exec, stream);
}
