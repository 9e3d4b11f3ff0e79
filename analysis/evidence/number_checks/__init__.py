"""Check the numbers of a text against the tables that hidden comments in it name.

    python -m analysis.evidence.number_checks README.md results/published/*/README.md        # or: make check-numbers

A mark is an HTML comment in the section of the numbers it names, after them:

    No head has a sink: the largest share on the first token is 0.037, uniform attention has 0.035.
    <!-- check sinks/measures axis=
    largest share on the first token is #, | max value measure=first_token_mass
    uniform attention has #. | mean value measure=first_token_uniform
    -->

Its first line names a table (published_tables.py) and conditions that hold for all its lines.
Each further line is a piece of the text with `#` in place of a number (of several, the expressions are set off by
` ; `), a bar, and the expression for it (queries.py). The piece must occur exactly once between
the last heading and the mark, however it is wrapped there. The number must be what the table's rounds to at the digits
that are written: 0.037 is 0.0365 to 0.0375, 16,640 is itself; before a % sign the table's number counts a hundredfold.

    loss moves by # at most | >= EXPRESSION       a bound: the written number is at least (or: at most, below, above)
    both end below it | EXPRESSION < EXPRESSION   words alone: two numbers of the table, also = to nine digits

A mark whose second line is `rows COLUMN` is of the table (Markdown) before it: each row's first cell is a value of
that column, and each number after it, from left to right, one expression (`| EXPRESSION`, a line each or with ` ; `;
`_`: that number is checked by another mark).
"""
