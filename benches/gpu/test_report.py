#!/usr/bin/env python3
"""python3 benches/gpu/test_report.py: what report.py makes of a record, of half of one, and of what is none."""
import json
import os
import tempfile
import unittest

import report

RESULT = {
    "format": report.FORMAT, "dry_run": False, "started_unix": 1795305600, "finished": True, "passed": False,
    "seconds": 301.5, "kit": {"commit": "abc", "mode": "full"},
    "card": {"name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0", "multiprocessors": 132,
             "memory_bytes": 85520809984, "l2_bytes": 52428800, "bandwidth_by_clock": 3352320000000},
    "nvidia_smi": [{"driver_version": "550.54.15"}],
    "memory": [{"what": "copy", "bytes": 1 << 30, "microseconds": 400.0, "bytes_per_second": 2684354560000.0}],
    "bandwidth": [{"kernel": "matvec_nested", "level": 4, "planes": "apart", "rows": 14336, "columns": 4096,
                   "bytes": 469762048, "microseconds": 350.0, "launches": 500}],
    "layer_microseconds": 159.0, "argmax_microseconds": 92.5, "argmax": {"tokens": 151936},
    "layer": [{"part": "whole", "context": 1024, "microseconds": 159.0},
              {"part": "attend", "context": 1024, "microseconds": 73.25},
              {"part": "whole", "context": 1, "microseconds": 85.0}],
    "tokens": [{"experts": "resident", "test": "pp512", "tokens_per_second": 1234.5}],
    "cases": {"cuda": [{"name": "a::b", "outcome": "passed"},
                       {"name": "a::c", "outcome": "unfinished", "alone": "failed", "message": "1 | 2\nis not 3"}]},
    "steps": [{"name": "CUDA: argmax", "outcome": "timed out", "seconds": 15.01, "message": "0 results"}],
    "sanitizer": {"memcheck": {"summary": "ERROR SUMMARY: 0 errors", "cases_begun": 40, "ending": "exit code 0"}},
    "ncu": {"csv": '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
                   '"0","matvec_nested","Duration","us","350.1"\n"0","matvec_nested","Other","","1"\n'},
}


class Reports(unittest.TestCase):
    def test_every_table_is_there(self):
        text = report.report(RESULT)
        for line in [
            "# GPU kit on NVIDIA H100 80GB HBM3, 2026-11-22",
            "| matvec_nested | 4 | apart | 1 | 469.8 | 350.0 | 500 | 1,342 | 50 % |",
            "| one layer, one token, us | context 1 | context 1024 |",
            "| attend | - | 73.25 |",
            "`argmax` of 151,936 logits: 92.5 us.",
            "| resident | pp512 | 1,234 | - |",
            "- `a::c`: unfinished, alone failed: 1 | 2 is not 3",
            "| CUDA: argmax | timed out | 15.0 | 0 results |",
            "| memcheck | ERROR SUMMARY: 0 errors | 40 | exit code 0 |",
            "| matvec_nested | 350.1 us | - | - | - | - | - |",
            "whole, not all passed, 301.5 s.",
        ]:
            self.assertIn(line, text)
        self.assertNotIn("dry run", text)

    def test_half_a_record_is_a_record(self):
        text = report.report({"format": report.FORMAT, "dry_run": True, "started_unix": 0, "finished": False})
        self.assertIn("INTERRUPTED, not all passed", text)
        self.assertIn("figures mean nothing", text)

    def test_records_are_kept_and_none_is_replaced(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "result.json")
            with open(path, "w") as file:
                json.dump(RESULT, file)
            stems = [report.keep(path, report.read(path), folder) for _ in range(2)]
            names = [os.path.relpath(stem, folder) for stem in stems]
            self.assertEqual(names, ["2026-11-22/gpu-nvidia-h100-80gb-hbm3", "2026-11-22/gpu-nvidia-h100-80gb-hbm3-2"])
            self.assertTrue(os.path.exists(stems[1] + ".md"))

    def test_what_is_no_record_is_refused(self):
        for text in ["", "[]", "{}", '{"format": "something"}']:
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(text)
                file.flush()
                with self.assertRaises(SystemExit):
                    report.read(file.name)


if __name__ == "__main__":
    unittest.main()
