// Goroutines that allocate and check objects until the file named as first argument exists; prints every result that a round had.
package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"sort"
	"sync"
)

const goroutines = 8

type node struct {
	next  *node
	bytes []byte
}

func round(number int) string {
	chains := make(map[uint32]*node)
	value := uint32(number + 1)
	for i := 0; i < 50000; i++ {
		value = value*1664525 + 1013904223
		bytes := make([]byte, 16+value>>26)
		for k := range bytes {
			bytes[k] = byte(value >> (k & 15))
		}
		next := chains[value%1009]
		if i%32 == 0 {
			next = nil
		}
		chains[value%1009] = &node{next, bytes}
	}
	hash := sha256.New()
	for key := uint32(0); key < 1009; key++ {
		for node := chains[key]; node != nil; node = node.next {
			hash.Write(node.bytes)
		}
	}
	return fmt.Sprintf("goroutine %d: %x", number, hash.Sum(nil))
}

func main() {
	stop := os.Args[1]
	found := make(chan string)
	var group sync.WaitGroup
	for number := 0; number < goroutines; number++ {
		group.Add(1)
		go func(number int) {
			defer group.Done()
			for {
				found <- round(number)
				if _, err := os.Stat(stop); err == nil {
					return
				}
			}
		}(number)
	}
	go func() {
		group.Wait()
		close(found)
	}()
	results, rounds := make(map[string]bool), 0
	for result := range found {
		results[result] = true
		rounds++
	}
	var lines []string
	for line := range results {
		lines = append(lines, line)
	}
	sort.Strings(lines)
	for _, line := range lines {
		fmt.Println(line)
	}
	fmt.Fprintln(os.Stderr, "rounds", rounds)
}
