// Two sides of a pipe, on two strands of one process.
#include "exchange/shared/pipe.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "exchange/shared/door.h"
#include "services/clock/clock.h"

namespace capstan::exchange::shared {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr auto kLimit = std::chrono::seconds(60);

struct Heard {
  std::vector<std::string> messages;
  int began = 0;
  int room = 0;
  absl::Status broken;

  Pipe::Handlers handlers() {
    return {[this](wire::Pieces pieces) { messages.push_back(absl::StrJoin(pieces, "")); },
            [this] { ++began; }, [this] { ++room; },
            [this](const absl::Status& status) { broken = status; }};
  }
};

RingResult Say(Pipe& pipe, absl::string_view message) { return pipe.Write({&message, 1}); }

bool IsReadable(int fd) {
  pollfd wait = {fd, POLLIN, 0};
  return poll(&wait, 1, 0) == 1;
}

class PipeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = Pipe::Create(RingBytesFor(0));
    ASSERT_TRUE(made.ok()) << made.status();
    shard_ = *std::move(made);
    auto mapped = Pipe::Map(shard_->memory());
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    peer_ = *std::move(mapped);
    auto to_shard = MakeWakePair(), to_peer = MakeWakePair();
    ASSERT_TRUE(to_shard.ok() && to_peer.ok());
    shard_->SetWakes(std::move(to_peer->wake), std::move(to_shard->wait));
    peer_->SetWakes(std::move(to_shard->wake), std::move(to_peer->wait));
    shard_->Open(shard_heard_.handlers());
    peer_->Open(peer_heard_.handlers());
  }
  static void RunAll(Pipe& pipe) {
    while (pipe.Ready()) pipe.Run();
  }

  services::StrandLoop shard_strand_, peer_strand_;
  Heard shard_heard_, peer_heard_;
  std::shared_ptr<Pipe> shard_, peer_;
};

TEST_F(PipeTest, NothingIsReadBeforeWhatWasSentOnTheStreamIsHandled) {
  EXPECT_FALSE(peer_->Ready());
  shard_->BeginSending(3);
  ASSERT_EQ(Say(*shard_, "first"), RingResult::kDone);
  RunAll(*peer_);
  EXPECT_EQ(peer_heard_.began, 1);
  EXPECT_THAT(peer_heard_.messages, IsEmpty());
  peer_->SetHandledOnStream(2);
  EXPECT_FALSE(peer_->Ready());
  peer_->SetHandledOnStream(3);
  EXPECT_TRUE(peer_->Ready());
  RunAll(*peer_);
  EXPECT_THAT(peer_heard_.messages, ElementsAre("first"));
  EXPECT_EQ(peer_heard_.began, 1);
}

TEST_F(PipeTest, BothDirectionsAreApart) {
  shard_->BeginSending(0);
  peer_->BeginSending(1);
  shard_->SetHandledOnStream(1);
  ASSERT_EQ(Say(*shard_, "weights"), RingResult::kDone);
  ASSERT_EQ(Say(*peer_, "gradient"), RingResult::kDone);
  RunAll(*shard_);
  RunAll(*peer_);
  EXPECT_THAT(shard_heard_.messages, ElementsAre("gradient"));
  EXPECT_THAT(peer_heard_.messages, ElementsAre("weights"));
}

TEST_F(PipeTest, AFullRingSaysWhenThereIsRoom) {
  shard_->BeginSending(0);
  const std::string long_one(size_t{100} << 10, 'x');
  int written = 0;
  while (Say(*shard_, long_one) == RingResult::kDone) ++written;
  EXPECT_EQ(written, 5);  // of 100 KiB in 512
  EXPECT_FALSE(shard_->Ready());
  RunAll(*peer_);
  EXPECT_EQ(peer_heard_.messages.size(), 5u);
  EXPECT_TRUE(shard_->Ready());
  RunAll(*shard_);
  EXPECT_EQ(shard_heard_.room, 1);
  EXPECT_EQ(Say(*shard_, long_one), RingResult::kDone);
}

TEST_F(PipeTest, ARunHandlesSomeMessagesAndADrainAll) {
  shard_->BeginSending(0);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Say(*shard_, "x"), RingResult::kDone);
  peer_->Run();
  EXPECT_LT(peer_heard_.messages.size(), 50u);
  peer_->Drain();
  EXPECT_EQ(peer_heard_.messages.size(), 100u);
}

TEST_F(PipeTest, AClosedPipeSaysNothing) {
  shard_->BeginSending(0);
  ASSERT_EQ(Say(*shard_, "x"), RingResult::kDone);
  peer_->Close();
  EXPECT_FALSE(peer_->Ready());
  peer_->Drain();
  EXPECT_THAT(peer_heard_.messages, IsEmpty());
}

// The counters lie at the begin of the memory; the shard's ring is first.
TEST_F(PipeTest, NonsenseOfThePeerEndsThePipe) {
  shard_->BeginSending(0);
  char* const memory = static_cast<char*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, shard_->memory().get(), 0));
  ASSERT_NE(memory, MAP_FAILED);
  const uint64_t written = uint64_t{1} << 40;
  std::memcpy(memory, &written, sizeof(written));
  RunAll(*peer_);
  EXPECT_EQ(peer_heard_.broken.code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(peer_->Ready());
  std::memset(memory + 64, 0x7f, 8);  // what the peer says to have read
  EXPECT_EQ(Say(*shard_, "x"), RingResult::kBroken);
  ASSERT_TRUE(shard_->Ready());
  shard_->Run();
  EXPECT_EQ(shard_heard_.broken.code(), absl::StatusCode::kDataLoss);
  munmap(memory, 4096);
}

// What a peer may do with the other end of its own socket.
TEST(WakeTest, AWakeNeverWaits) {
  auto pair = MakeWakePair();
  ASSERT_TRUE(pair.ok());
  for (int i = 0; i < 100000; ++i) Wake(pair->wake);  // more than it holds
  EXPECT_TRUE(IsReadable(pair->wait.get()));
  pair->wait = Fd();
  Wake(pair->wake);  // nobody reads it any more
  Wake(Fd(open("/dev/null", O_RDWR)));
  Wake(Fd());
}

TEST_F(PipeTest, APeerThatClosesItsWakeEndIsNotWaitedForAnyMore) {
  peer_.reset();
  EXPECT_TRUE(IsReadable(shard_->wake_fd()));
  shard_->OnWakeFd();
  EXPECT_EQ(shard_->wake_fd(), -1);
}

TEST_F(PipeTest, AMessageLongerThanTheRingEndsThePipe) {
  shard_->BeginSending(0);
  EXPECT_EQ(Say(*shard_, std::string(size_t{1} << 20, 'x')), RingResult::kTooLong);
  ASSERT_TRUE(shard_->Ready());
  shard_->Run();
  EXPECT_THAT(std::string(shard_heard_.broken.message()), ::testing::HasSubstr("longer than"));
}

TEST(PipeMemoryTest, MemoryThatCanShrinkOrHasAnotherSizeIsRefused) {
  const Fd unsealed(memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096 + (2 << 20)), 0);
  EXPECT_EQ(Pipe::Map(unsealed).status().code(), absl::StatusCode::kFailedPrecondition);
  for (const int64_t size : {int64_t{0}, int64_t{4096}, int64_t{4096} + (2 << 20) + 4096,
                             int64_t{4096} + (int64_t{1} << 40)}) {
    const Fd odd(memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(ftruncate(odd.get(), size), 0);
    ASSERT_EQ(fcntl(odd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    EXPECT_EQ(Pipe::Map(odd).status().code(), absl::StatusCode::kFailedPrecondition) << size;
  }
  EXPECT_FALSE(Pipe::Map(Fd(open("/dev/null", O_RDWR))).ok());
}

TEST(PipeSizesTest, ARingHoldsAnyMessageOfItsJob) {
  for (int64_t bytes = 4; bytes < int64_t{1} << 33; bytes *= 3) {
    const int64_t message =
        std::min<int64_t>(2 * bytes + wire::kMaxHeaderBytes, wire::kMaxMessageBytes);
    EXPECT_GE(RingBytesFor(bytes), static_cast<int64_t>(RingBytes(message))) << bytes;
    EXPECT_LE(RingBytesFor(bytes), 4 << 20);
  }
}

// Each side answers each message, and both sleep whenever nothing is there.
TEST_F(PipeTest, StrandsThatSleepAreWoken) {
  constexpr int kMessages = 20000;
  std::promise<int> done;
  std::mt19937 draw(1);
  std::deque<std::string> queue;
  int sent = 0, heard = 0;
  const auto fill = [&] {
    while (!queue.empty() && Say(*shard_, queue.front()) == RingResult::kDone) queue.pop_front();
  };
  const auto send = [&] {
    for (int i = 0; i < 1 + static_cast<int>(draw() % 8) && sent < kMessages; ++i, ++sent) {
      queue.push_back(absl::StrCat(sent, ":", std::string(draw() % 70000, 'x')));
    }
    fill();
  };
  shard_->Open({[&](wire::Pieces pieces) {
                  EXPECT_EQ(absl::StrJoin(pieces, ""), absl::StrCat(heard, ""));
                  if (++heard == kMessages) {
                    done.set_value(heard);
                  } else if (heard == sent) {
                    send();
                  }
                },
                [] {}, fill, [](const absl::Status& status) { FAIL() << status; }});
  int next = 0;
  std::deque<std::string> answers;
  const auto answer = [&] {
    while (!answers.empty() && Say(*peer_, answers.front()) == RingResult::kDone) {
      answers.pop_front();
    }
  };
  peer_->Open({[&](wire::Pieces pieces) {
                 const std::string message = absl::StrJoin(pieces, "");
                 const std::string number = message.substr(0, message.find(':'));
                 EXPECT_EQ(number, absl::StrCat(next++));
                 answers.push_back(number);
                 answer();
               },
               [&] { peer_->BeginSending(0); }, answer,
               [](const absl::Status& status) { FAIL() << status; }});
  shard_strand_.Post([&] {
    shard_strand_.Add(shard_);
    shard_->BeginSending(0);
    send();
  });
  peer_strand_.Post([&] { peer_strand_.Add(peer_); });
  std::thread one([&] { shard_strand_.Run(); });
  std::thread other([&] { peer_strand_.Run(); });
  auto future = done.get_future();
  EXPECT_EQ(future.wait_for(kLimit), std::future_status::ready);
  shard_strand_.Stop();
  peer_strand_.Stop();
  one.join();
  other.join();
  EXPECT_EQ(heard, kMessages);
}

class FakeGuest final : public Guest {
 public:
  std::optional<int64_t> RingBytes() override {
    return gone ? std::nullopt : std::optional<int64_t>(RingBytesFor(0));
  }
  void OnPipe(std::shared_ptr<Pipe> pipe) override { came.set_value(std::move(pipe)); }

  bool gone = false;  // set before the first visitor
  std::promise<std::shared_ptr<Pipe>> came;
};

class DoorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Door::Open();
    ASSERT_TRUE(opened.ok()) << opened.status();
    door_ = *std::move(opened);
  }
  // What comes of a dial in the end.
  absl::StatusOr<std::shared_ptr<Pipe>> DialWith(const std::string& invitation) {
    auto dial = Dial::Start(invitation);
    if (!dial.ok()) return dial.status();
    const absl::Duration end = MonotonicNow() + absl::FromChrono(kLimit);
    for (;;) {
      auto pipe = dial->Try();
      if (!absl::IsNotFound(pipe.status()) || MonotonicNow() > end) return pipe;
      std::this_thread::yield();  // to the door's thread
    }
  }

  std::shared_ptr<FakeGuest> guest_ = std::make_shared<FakeGuest>();
  std::unique_ptr<Door> door_;
};

TEST_F(DoorTest, AGuestGetsThePipeThatItsPeerHasMapped) {
  const std::string invitation = door_->Invite(guest_);
  auto peer = DialWith(invitation);
  ASSERT_TRUE(peer.ok()) << peer.status();
  auto came = guest_->came.get_future();
  ASSERT_EQ(came.wait_for(kLimit), std::future_status::ready);
  const std::shared_ptr<Pipe> shard = came.get();
  Heard shard_heard, peer_heard;
  shard->Open(shard_heard.handlers());
  (*peer)->Open(peer_heard.handlers());
  (*peer)->SetAsleep(true);
  shard->BeginSending(0);
  ASSERT_EQ(Say(*shard, "hello"), RingResult::kDone);
  EXPECT_TRUE(IsReadable((*peer)->wake_fd()));
  (*peer)->OnWakeFd();
  EXPECT_FALSE(IsReadable((*peer)->wake_fd()));
  (*peer)->Drain();
  EXPECT_THAT(peer_heard.messages, ElementsAre("hello"));
  // A secret is good once.
  EXPECT_FALSE(DialWith(invitation).ok());
}

TEST_F(DoorTest, WhoHasNoSecretOfAStreamIsRefused) {
  const std::string invitation = door_->Invite(guest_);
  const std::string name = invitation.substr(0, invitation.find(' '));
  EXPECT_FALSE(DialWith(absl::StrCat(name, " ", std::string(32, '0'))).ok());
  EXPECT_FALSE(DialWith(name).ok());
  EXPECT_TRUE(DialWith(invitation).ok()) << "others do not use it up";
}

TEST_F(DoorTest, AStreamThatHasEndedGetsNoPipe) {
  const std::string invitation = door_->Invite(guest_);
  guest_->gone = true;
  EXPECT_FALSE(DialWith(invitation).ok());
  const std::string other = door_->Invite(guest_);
  guest_.reset();
  EXPECT_FALSE(DialWith(other).ok());
}

TEST_F(DoorTest, AnotherHostDoesNotKnowTheName) {
  EXPECT_TRUE(absl::IsNotFound(DialWith("capstan-0123 4567").status()));
  EXPECT_EQ(DialWith("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DialWith(std::string(200, 'x') + " 4567").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(DoorTest, ManyVisitorsThatSayNothingDoNotKeepOthersOut) {
  const std::string invitation = door_->Invite(guest_);
  const std::string name = invitation.substr(0, invitation.find(' '));
  std::vector<Dial> silent;
  for (int i = 0; i < 8; ++i) {
    auto dial = Dial::Start(absl::StrCat(name, " x"));
    ASSERT_TRUE(dial.ok()) << dial.status();
    silent.push_back(*std::move(dial));
  }
  EXPECT_TRUE(DialWith(invitation).ok());
}

}  // namespace
}  // namespace capstan::exchange::shared
