// Lists that are short nearly always: the first few items lie in the list itself, on one line of the cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace coopjax {

// The part of std::vector's interface that its users need. More than kNumInside items move to the heap, and stay there.
template <typename T, uint32_t kNumInside>
class alignas(64) ShortList {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using iterator = T*;
  using const_iterator = const T*;

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return outside_ ? outside_.get() : inside_; }
  T* end() { return begin() + size_; }
  const T* begin() const { return outside_ ? outside_.get() : inside_; }
  const T* end() const { return begin() + size_; }
  T& operator[](size_t i) { return begin()[i]; }
  const T& operator[](size_t i) const { return begin()[i]; }
  T& back() { return end()[-1]; }
  const T& back() const { return end()[-1]; }

  void clear() { size_ = 0; }
  void push_back(const T& item) { insert(end(), item); }
  void insert(const T* before, T item) {
    const size_t at = before - begin();
    if (size_ == capacity_) Grow();
    T* const place = begin() + at;
    std::copy_backward(place, end(), end() + 1);
    *place = item;
    ++size_;
  }
  void erase(const T* item) {
    T* const place = begin() + (item - begin());
    std::copy(place + 1, end(), place);
    --size_;
  }

 private:
  void Grow() {
    auto larger = std::make_unique_for_overwrite<T[]>(2 * capacity_);
    std::copy(begin(), end(), larger.get());
    outside_ = std::move(larger);
    capacity_ *= 2;
  }

  T inside_[kNumInside];
  std::unique_ptr<T[]> outside_;
  uint32_t size_ = 0;
  uint32_t capacity_ = kNumInside;
};

}  // namespace coopjax
