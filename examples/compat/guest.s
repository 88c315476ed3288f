# A boot sector: fills and sums 32 MiB of memory again and again, and writes each sum to the serial line.
#
#     as --32 -o guest.o guest.s && ld -m elf_i386 -Ttext 0x7c00 --oformat binary -o guest.img guest.o

        .code16
        .globl _start
_start: cli
        xorw    %ax, %ax
        movw    %ax, %ds
        lgdt    descriptors
        movl    %cr0, %eax
        orl     $1, %eax
        movl    %eax, %cr0
        ljmp    $8, $protected

        .code32
protected:
        movw    $16, %ax
        movw    %ax, %ds
        movw    %ax, %es
        movw    %ax, %ss
        movl    $0x7c00, %esp
        cld

        .set    FIRST, 0x100000
        .set    WORDS, 8 << 20
        .set    SERIAL, 0x3f8

round:  movl    $FIRST, %edi
        movl    $WORDS, %ecx
        movl    $1, %eax
fill:   imull   $1664525, %eax
        addl    $1013904223, %eax
        stosl
        decl    %ecx
        jnz     fill

        movl    $FIRST, %esi
        movl    $WORDS, %ecx
        xorl    %ebx, %ebx
sum:    lodsl
        roll    $1, %ebx
        addl    %eax, %ebx
        decl    %ecx
        jnz     sum

        movl    $8, %ecx
digit:  roll    $4, %ebx
        movl    %ebx, %eax
        andl    $15, %eax
        movb    digits(%eax), %al
        call    put
        decl    %ecx
        jnz     digit
        movb    $'\n', %al
        call    put
        jmp     round

put:    movb    %al, %ah
        movw    $SERIAL + 5, %dx
busy:   inb     %dx, %al
        testb   $0x20, %al
        jz      busy
        movb    %ah, %al
        movw    $SERIAL, %dx
        outb    %al, %dx
        ret

digits: .ascii  "0123456789abcdef"
        .align  8
table:  .quad   0, 0x00cf9a000000ffff, 0x00cf92000000ffff
descriptors:
        .word   . - table - 1
        .long   table
        .org    510
        .word   0xaa55
