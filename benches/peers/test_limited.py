#!/usr/bin/env python3
"""python3 benches/peers/test_limited.py: what limited.py does with control groups of either version,
on folders that stand for them."""
import os
import tempfile
import unittest

import limited

V1 = ["cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0",
      "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0",
      "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0"]
V2 = ["proc /proc proc rw 0 0", "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0"]


class Groups(unittest.TestCase):
    def read(self, group, name):
        with open(os.path.join(group.path, name)) as file:
            return file.read()

    def test_the_group_of_memory_is_found_whatever_its_version(self):
        self.assertEqual(limited.mounted_groups(V1), ("/sys/fs/cgroup/memory", 1))
        self.assertEqual(limited.mounted_groups(V2), ("/sys/fs/cgroup", 2))
        with self.assertRaises(SystemExit):
            limited.mounted_groups(["proc /proc proc rw 0 0"])

    def test_version_2_is_limited_and_its_peak_and_kills_are_read(self):
        with tempfile.TemporaryDirectory() as root:
            group = limited.Group(1 << 30, (root, 2))
            self.assertEqual(self.read(group, "memory.max"), str(1 << 30))
            self.assertEqual(self.read(group, "memory.swap.max"), "0")
            self.assertIsNone(group.peak())
            group.write("memory.peak", 12345)
            group.write("memory.events", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 2\n")
            self.assertEqual((group.peak(), group.killed()), (12345, 2))

    def test_version_1_has_files_of_its_own(self):
        with tempfile.TemporaryDirectory() as root:
            group = limited.Group(4096, (root, 1))
            self.assertEqual(self.read(group, "memory.limit_in_bytes"), "4096")
            self.assertFalse(os.path.exists(os.path.join(group.path, "memory.max")))
            group.write("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
            group.write("memory.max_usage_in_bytes", 99)
            self.assertEqual((group.peak(), group.killed()), (99, 1))


if __name__ == "__main__":
    unittest.main()
