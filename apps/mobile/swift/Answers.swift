// Events of answers as asynchronous sequences. Part of the module that `uniffi-bindgen` generates.

extension Generation {
    /// Events of the answer. It is cancelled if the loop ends early or its task is cancelled.
    public func events() -> AsyncThrowingStream<Event, Error> {
        AsyncThrowingStream { continuation in
            let task = Task {
                do {
                    while let event = try await self.next() { continuation.yield(event) }
                    continuation.finish()
                } catch {
                    continuation.finish(throwing: error)
                }
            }
            continuation.onTermination = { _ in
                self.cancel()
                task.cancel()
            }
        }
    }

    /// Text of the answer, piece by piece.
    public func pieces() -> AsyncThrowingStream<String, Error> {
        AsyncThrowingStream { continuation in
            let task = Task {
                do {
                    while let event = try await self.next() {
                        if case .text(let text) = event { continuation.yield(text) }
                    }
                    continuation.finish()
                } catch {
                    continuation.finish(throwing: error)
                }
            }
            continuation.onTermination = { _ in
                self.cancel()
                task.cancel()
            }
        }
    }
}
