// The benchmark of gc.rs for OpenJDK: an array of linked lists, each dropped and built anew in every round.
// Arguments: lists, nodes of a list, rounds, seed. Prints one line of results, and the times of rebuilding a
// list as lines of `l NANOSECONDS COUNT`.

import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;

public final class PagelabGc {
    static final class Node {
        final Node next;
        final long value;

        Node(Node next, long value) {
            this.next = next;
            this.value = value;
        }
    }

    // Steps of the counts of times: 64 for each doubling.
    static final int SUB_BITS = 6;

    static long state;

    // splitmix64, as everywhere in pagelab.
    static long draw() {
        state += 0x9e3779b97f4a7c15L;
        long z = state;
        z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L;
        z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
        return z ^ (z >>> 31);
    }

    static int shift(long ns) {
        return Math.max(0, 63 - Long.numberOfLeadingZeros(ns | 1) - SUB_BITS);
    }

    public static void main(String[] arguments) {
        int lists = Integer.parseInt(arguments[0]);
        long length = Long.parseLong(arguments[1]);
        long rounds = Long.parseLong(arguments[2]);
        state = Long.parseUnsignedLong(arguments[3]);
        Node[] heads = new Node[lists];
        long[] counts = new long[64 << (SUB_BITS + 1)];
        long began = System.nanoTime();
        long now = began;
        for (long round = 0; round < rounds; round++) {
            for (int list = 0; list < lists; list++) {
                heads[list] = null;
                for (long node = 0; node < length; node++) {
                    heads[list] = new Node(heads[list], draw());
                }
                long before = now;
                now = System.nanoTime();
                long took = Math.max(0, now - before);
                counts[(shift(took) << (SUB_BITS + 1)) + (int) (took >>> shift(took))]++;
            }
        }
        long took = now - began;
        long sum = 0;
        long nodes = 0;
        for (Node head : heads) {
            for (Node node = head; node != null; node = node.next) {
                sum = (sum ^ node.value) * 0x100000001b3L;
                nodes++;
            }
        }
        long collections = 0;
        long milliseconds = 0;
        for (GarbageCollectorMXBean bean : ManagementFactory.getGarbageCollectorMXBeans()) {
            collections += bean.getCollectionCount();
            milliseconds += bean.getCollectionTime();
        }
        StringBuilder said = new StringBuilder();
        said.append("pagelab-gc " + Long.toUnsignedString(sum) + " " + nodes + " " + took + " " + collections + " "
                + milliseconds + "\n");
        for (int at = 0; at < counts.length; at++) {
            if (counts[at] > 0) {
                int shift = at >> (SUB_BITS + 1);
                long part = at & ((1L << (SUB_BITS + 1)) - 1);
                said.append("l " + (((part + 1) << shift) - 1) + " " + counts[at] + "\n");
            }
        }
        System.out.print(said);
    }
}
