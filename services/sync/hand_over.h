// Tells ThreadSanitizer that an object passed from one thread to another through an uninstrumented
// library.
//
// The packaged gRPC is not instrumented, so ThreadSanitizer cannot see that a reaction runs after
// the call that started it. Code that gives an object to gRPC calls HandOver(object) first. A
// reaction begins with a Reaction, the last one with TakeOver(object). They do nothing in other
// builds, and add no ordering that gRPC does not provide: data that two reactions share still needs
// a lock.
#ifndef CAPSTAN_SERVICES_SYNC_HAND_OVER_H_
#define CAPSTAN_SERVICES_SYNC_HAND_OVER_H_

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CAPSTAN_THREAD_SANITIZER 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define CAPSTAN_THREAD_SANITIZER 1
#endif

#ifdef CAPSTAN_THREAD_SANITIZER
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace capstan {

inline void HandOver([[maybe_unused]] const void* object) {
#ifdef CAPSTAN_THREAD_SANITIZER
  __tsan_release(const_cast<void*>(object));
#endif
}

inline void TakeOver([[maybe_unused]] const void* object) {
#ifdef CAPSTAN_THREAD_SANITIZER
  __tsan_acquire(const_cast<void*>(object));
#endif
}

// For every reaction except the last one: takes the object over, and at its end hands it to the
// next.
class Reaction {
 public:
  explicit Reaction(const void* object) : object_(object) { TakeOver(object_); }
  ~Reaction() { HandOver(object_); }
  Reaction(const Reaction&) = delete;
  Reaction& operator=(const Reaction&) = delete;

 private:
  const void* const object_;
};

}  // namespace capstan

#endif  // CAPSTAN_SERVICES_SYNC_HAND_OVER_H_
