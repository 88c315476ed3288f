import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;

/** Many threads that allocate and check objects until the file named as first argument exists; prints every result that a round had. */
public class Churn {
    static final int THREADS = 24;
    static final TreeSet<String> results = new TreeSet<>();
    static final AtomicLong rounds = new AtomicLong();

    static final class Node {
        final Node next;
        final byte[] bytes;

        Node(Node next, byte[] bytes) {
            this.next = next;
            this.bytes = bytes;
        }
    }

    static long round(int thread) {
        HashMap<Integer, Node> map = new HashMap<>();
        int value = thread * 7919 + 1;
        for (int i = 0; i < 20_000; i++) {
            value = value * 1664525 + 1013904223;
            byte[] bytes = new byte[16 + (value >>> 26)];
            for (int k = 0; k < bytes.length; k++) {
                bytes[k] = (byte) (value >>> (k & 15));
            }
            map.put(i & 511, new Node((i & 31) == 0 ? null : map.get(i & 511), bytes));
        }
        CRC32 sum = new CRC32();
        for (int key = 0; key < 512; key++) {
            for (Node node = map.get(key); node != null; node = node.next) {
                sum.update(node.bytes);
            }
        }
        return sum.getValue();
    }

    public static void main(String[] arguments) throws Exception {
        Path stop = Path.of(arguments[0]);
        Thread[] threads = new Thread[THREADS];
        for (int t = 0; t < THREADS; t++) {
            int number = t;
            threads[t] = new Thread(() -> {
                do {
                    String result = String.format("thread %02d: %08x", number, round(number));
                    rounds.incrementAndGet();
                    synchronized (results) {
                        results.add(result);
                    }
                } while (!Files.exists(stop));
            });
            threads[t].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        results.forEach(System.out::println);
        System.err.println("rounds " + rounds);
    }
}
