// Sample for iOS, not compiled by any check: it needs Xcode.
//
// The controller holds one model. iOS announces low memory through didReceiveMemoryWarning, and the model's budget falls.

import Nestling
import UIKit

final class StoryViewController: UIViewController {
    /// Budget of the model while memory is not low, in bytes.
    private let budget: UInt64 = 512 << 20

    // Experts that do not fit the budget are read from the file, so that a smaller budget is possible at any time.
    private lazy var model = Task { [budget] in
        let path = Bundle.main.path(forResource: "model", ofType: "nest") ?? ""
        let options = OpenOptions(memoryBudget: budget, contextLength: 2048, residence: .streamed)
        return try await Model.open(path: path, options: options)
    }

    private let text = UITextView()

    override func viewDidLoad() {
        super.viewDidLoad()
        text.frame = view.bounds
        view.addSubview(text)
        Task { @MainActor in
            do {
                let options = GenerateOptions(maxTokens: 200, temperature: 0)
                let answer = try await model.value.session().generate(text: "The captain said", options: options)
                // Leaving the loop cancels the answer.
                for try await piece in answer.pieces() { text.text += piece }
            } catch let error as NestlingError {
                text.text = "\(error)"
            }
        }
    }

    override func didReceiveMemoryWarning() {
        super.didReceiveMemoryWarning()
        // Not on the main thread: a smaller budget waits for the running step.
        Task.detached { [model] in
            let model = try await model.value
            let used = model.status().memoryUsed
            do {
                try model.setMemoryBudget(bytes: used / 2)
            } catch NestlingError.NoRoom {
                // Weights and sessions alone need more. The experts can go.
                model.relievePressure(bytes: used)
            }
        }
    }
}
